"""Parts of ``bench/fuzz.py``: targets, generation of inputs, and evaluation of results."""
