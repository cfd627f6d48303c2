"""Files that people drop on the page: who may send them, how many, and how they are read."""
