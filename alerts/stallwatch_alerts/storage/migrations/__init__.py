"""Alembic's folder: ``versions/`` holds one file per change of the tables. See ``storage.engine.migrate``."""
