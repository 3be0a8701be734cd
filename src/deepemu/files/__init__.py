"""Emulators in files."""
