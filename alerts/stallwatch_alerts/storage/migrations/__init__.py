"""Alembic migrations. Each schema change has a file in ``versions/``. See ``storage.engine.migrate``."""
