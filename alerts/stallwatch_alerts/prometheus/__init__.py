"""Support alerting through Prometheus: generate alert rules from the catalogue and test the entire path."""
