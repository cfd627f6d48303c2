"""Parts of ``bench/fuzz.py``: the targets, the generation of inputs, and the evaluation of results."""
