"""Migrations of Alembic: ``versions/`` has one file per schema change. See ``storage.engine.migrate``."""
