"""Handle text itself: encodings, numbers, secrets, and removal of text that must not be shown."""
