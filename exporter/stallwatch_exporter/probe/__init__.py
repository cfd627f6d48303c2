"""Observe a rank from inside its process; import only the standard library and the training's modules.

The probe is loaded in two ways: by ``bootstrap/sitecustomize.py`` under the name ``stallwatch_probe`` (the
training's Python need not have Stallwatch installed), or as this package by ``import stallwatch``. Therefore
its modules import each other relatively, and are written for Python 3.8 and later.
"""
