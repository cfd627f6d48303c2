"""One file per library: what is noticed of it, and how. Each is installed by ``imports`` or ``torch``."""
