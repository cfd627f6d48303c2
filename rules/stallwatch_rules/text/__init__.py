"""Process text: detect encodings, parse numbers, redact secrets, and remove control characters."""
