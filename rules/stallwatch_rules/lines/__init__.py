"""What a line is: who wrote it, when, and what stood around it."""
