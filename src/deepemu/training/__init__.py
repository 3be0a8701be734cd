"""Training of structures."""
