"""Check that packages still print the text of the rules, for ``tools/verify_rules.py`` and the tests."""
