"""Integrations for code that reports by itself: a plain loop, a trainer's callback, an engine."""
