"""Do packages still print what the rules look for? For ``tools/verify_rules.py`` and the tests."""
