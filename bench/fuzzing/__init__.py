"""Parts of ``bench/fuzz.py``: targets, generation of inputs, and judgment of results."""
