"""Observe a rank from inside its process, with the standard library and the training's modules only.

The probe is loaded in two ways: under the name ``stallwatch_probe`` by ``bootstrap/sitecustomize.py``,
because the training's Python does not need to have Stallwatch installed, or as this package by ``import
stallwatch``. Therefore, its modules use relative imports and support Python 3.8 and later.
"""
