"""A run's numbers for Prometheus, and the server that hands them out."""
