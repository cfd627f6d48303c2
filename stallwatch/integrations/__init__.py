"""For code that wants to tell of itself: a plain loop, a trainer's callback, an engine."""
