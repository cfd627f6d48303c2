"""One file per library with its hooks. Each is installed by ``imports`` or ``torch``."""
