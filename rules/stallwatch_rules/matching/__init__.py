"""Find the places at which patterns match: in lines of a watched run, in blocks of bytes of a long log."""
