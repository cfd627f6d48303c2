"""Diagnose a finished run, from its logs and from the folder that Stallwatch stored."""
