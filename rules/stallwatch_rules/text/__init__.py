"""Process text: detect encodings, parse numbers, redact secrets, remove control characters."""
