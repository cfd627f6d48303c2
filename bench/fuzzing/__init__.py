"""Parts of ``bench/fuzz.py``: targets, generation of inputs, and judgement of results."""
