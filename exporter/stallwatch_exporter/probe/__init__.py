"""Observe a rank from inside its process with the standard library and the training's own modules only.

``bootstrap/sitecustomize.py`` loads the probe under the name ``stallwatch_probe``, because Stallwatch may be
missing from the training's Python. ``import stallwatch`` loads it as this package. Therefore, its modules use
relative imports and support Python 3.8 and later.
"""
