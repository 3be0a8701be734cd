"""Imputed networks on the host: assembled, and asked for moments and draws."""
