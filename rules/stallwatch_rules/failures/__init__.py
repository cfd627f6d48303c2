"""Failures as programs print them, and hints for failures that no rule knows."""
