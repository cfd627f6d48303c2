"""Read failures as programs print them, and find hints for failures that no rule knows."""
