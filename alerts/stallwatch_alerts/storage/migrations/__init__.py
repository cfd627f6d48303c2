"""Alembic migrations, with a file for each schema change in ``versions/``. See ``storage.engine.migrate``."""
