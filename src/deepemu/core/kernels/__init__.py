"""Kernels: one-dimensional functions, products over columns, expectations of pairs."""
