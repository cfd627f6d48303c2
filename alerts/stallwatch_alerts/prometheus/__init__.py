"""Alerting through Prometheus: alert rules generated from the catalogue, and a test of the entire path."""
