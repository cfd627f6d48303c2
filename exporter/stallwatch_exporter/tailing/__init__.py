"""Follow growing files for ``stallwatch tail``, even if they are rotated, truncated, or removed."""
