"""Hooks for libraries, one module per library; ``imports`` or ``torch`` installs them."""
