"""Observe a rank from inside its process with the standard library and the training's own modules only.

``bootstrap/sitecustomize.py`` loads the probe under the name ``stallwatch_probe``, because Stallwatch may not
be installed in the Python of the training. ``import stallwatch`` loads the probe as this package. Therefore,
the modules of the probe use relative imports and support Python 3.8 and later.
"""
