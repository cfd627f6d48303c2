"""Rule pages: read, validated and kept."""
