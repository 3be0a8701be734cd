"""Weights of trained structures, and what a fit found."""
