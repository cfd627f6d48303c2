"""Accept uploaded files: permissions, limits, and reading."""
