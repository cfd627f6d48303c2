"""Find the matches of patterns in the lines of a watched run and in blocks of bytes of a long log."""
