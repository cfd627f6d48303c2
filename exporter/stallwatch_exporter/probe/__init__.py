"""Code that runs inside a rank: standard library only, and no module that the training did not import.

Loaded in two ways: by ``bootstrap/sitecustomize.py`` under the name ``stallwatch_probe`` (the training's
Python need not have Stallwatch installed), or as this package by ``import stallwatch``. So its modules import
each other relatively, and are written for Python 3.8 and newer.
"""
