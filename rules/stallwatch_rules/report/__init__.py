"""Write reports of a diagnosis for people and programs: for a terminal, an issue tracker, as JSON."""
