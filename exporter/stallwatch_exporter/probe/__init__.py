"""Observe a rank from inside its process, using only the standard library and the program's own modules.

``bootstrap/sitecustomize.py`` loads the probe under the name ``stallwatch_probe``, because Stallwatch might
not be installed in the training program's Python environment. ``import stallwatch`` loads the probe as this
package. Therefore, the modules of the probe use relative imports and support Python 3.8 and later.
"""
