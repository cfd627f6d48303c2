"""Grafana support: boards as code, and the client that pushes them."""
