"""Text itself: encodings, numbers, secrets, and what of it may be shown."""
