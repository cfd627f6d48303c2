"""Run the migrations. Alembic runs this script in the transaction of ``storage.engine.migrate``."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
