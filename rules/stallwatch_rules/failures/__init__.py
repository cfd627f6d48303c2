"""Failures as programs print them, and what helps a reader where no rule knows them."""
