"""Build the diagnosis from what was read: findings, their order, the primary cause and the verdict."""
