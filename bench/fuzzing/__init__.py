"""The parts of ``bench/fuzz.py``: what is fuzzed, how inputs are made, and how each is judged."""
