"""Serve a run's metrics to Prometheus."""
