"""Messages on their way, and which chat was notified of what, in the incident database."""
