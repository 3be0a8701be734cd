"""Imputed networks on the host: assembly, moments and draws."""
