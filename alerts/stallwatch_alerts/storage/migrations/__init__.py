"""Alembic's folder: ``versions/`` contains one file per schema change. See ``storage.engine.migrate``."""
