"""User input: checks, scaling, sites, names."""
