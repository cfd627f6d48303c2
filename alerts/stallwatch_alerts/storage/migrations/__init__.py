"""Alembic's folder: ``versions/`` holds one file per schema change. See ``storage.engine.migrate``."""
