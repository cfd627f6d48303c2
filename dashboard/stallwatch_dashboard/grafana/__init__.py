"""Support Grafana: generate boards from code and push them to a server."""
