"""Messages on their way: which wait, which arrived, and who was told of what, in the incident database."""
