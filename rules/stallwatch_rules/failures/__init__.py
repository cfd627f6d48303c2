"""Read the failures that programs print, and find hints for failures that no rule describes."""
