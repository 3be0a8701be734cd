"""What users pass: checks, scaling, sites, names."""
