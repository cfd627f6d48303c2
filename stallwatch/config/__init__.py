"""The configuration: its keys, where their values come from, and what other packages get of it."""
