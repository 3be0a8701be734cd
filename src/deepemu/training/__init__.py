"""From data to trained structures."""
