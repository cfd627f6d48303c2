"""Which patterns match where: lines while a run is watched, blocks of bytes in a long log."""
