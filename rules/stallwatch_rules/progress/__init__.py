"""Measure how many steps a run completed, how fast it advanced, and how its metrics developed."""
