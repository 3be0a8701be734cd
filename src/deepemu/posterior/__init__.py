"""A fit: weights of trained structures, predictions, summary."""
