"""Measure how far a run came, how fast it advanced, and how its metrics developed."""
