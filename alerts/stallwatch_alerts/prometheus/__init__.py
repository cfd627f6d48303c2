"""Generate Prometheus alert rules from the catalogue, and test the path from a metric to the chats."""
