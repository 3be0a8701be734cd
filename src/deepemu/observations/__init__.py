"""Observation models: how outputs arise from the emulated function."""
