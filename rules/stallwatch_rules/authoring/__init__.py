"""For authors of rule pages: check, draft, and look a wording up in a package's source."""
