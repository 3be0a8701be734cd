"""Devices, compiled programs, padding, progress."""
