"""Find the lines that patterns match, in a watched run and in blocks of bytes from a long log."""
