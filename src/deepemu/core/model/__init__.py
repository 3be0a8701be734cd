"""The structure of a deep Gaussian process, and the priors of its parameters."""
