"""Run by Alembic, in the transaction that ``storage.engine.migrate`` began."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
