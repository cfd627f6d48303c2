"""Uploaded files: who may send them, how many, and how they are read."""
