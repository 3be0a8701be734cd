"""Gaussian-process nodes: density, draws, prediction at known and uncertain inputs."""
