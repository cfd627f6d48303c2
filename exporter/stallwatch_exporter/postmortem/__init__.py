"""Diagnose a finished run from its logs and from the run folder that Stallwatch stored."""
