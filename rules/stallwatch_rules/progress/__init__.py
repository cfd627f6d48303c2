"""Measure how far a run came, how fast, and how its metrics developed."""
