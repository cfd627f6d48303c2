"""Checkpoints on disk: whether their files are whole, read in bounded memory and never unpickled."""
