"""Long logs read in part: what is read, and what is only counted."""
