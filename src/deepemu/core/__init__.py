"""The numerical core: pure JAX functions, arguments in, value out."""
