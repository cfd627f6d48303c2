"""Integrations for code that reports its own steps: a plain loop, a trainer's callback, an engine."""
