"""Handle text itself: encodings, numbers, secrets, and which parts of it may be shown."""
