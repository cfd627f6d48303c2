"""Build the diagnosis of a run: findings, their order, the primary cause, and the verdict."""
