"""Parse lines: who wrote them, when, and what surrounds them."""
