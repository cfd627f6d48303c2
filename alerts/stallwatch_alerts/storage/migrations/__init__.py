"""Alembic migrations: ``versions/`` contains one file per schema change. See ``storage.engine.migrate``."""
