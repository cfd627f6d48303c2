"""Runs over many hosts: who belongs to a run, what its agents exchange, and their merged incidents."""
