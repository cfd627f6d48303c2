"""From what was read to the diagnosis: findings, their order, the primary cause and the verdict."""
