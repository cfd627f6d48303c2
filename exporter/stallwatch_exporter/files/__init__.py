"""Logs read from files: which, how they are unpacked, and by how many processes."""
