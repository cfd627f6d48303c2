"""Integrations for code that reports its own steps: a training loop, a trainer's callback, or an engine."""
