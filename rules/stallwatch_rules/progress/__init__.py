"""How far a run came, how fast, and how its numbers went."""
