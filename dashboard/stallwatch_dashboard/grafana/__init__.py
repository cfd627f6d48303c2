"""Stallwatch for those who live in Grafana: boards as code, and the way to put them there."""
