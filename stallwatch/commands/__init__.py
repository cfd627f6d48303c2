"""One module per command. Each imports what it needs inside its function, so that all start fast."""
