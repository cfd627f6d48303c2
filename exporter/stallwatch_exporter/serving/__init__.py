"""A run's numbers for Prometheus, and the server that exposes them."""
