"""Imputation of hidden layers and estimation of parameters."""
