"""Find which patterns match where: in lines of a watched run, in blocks of bytes of a long log."""
