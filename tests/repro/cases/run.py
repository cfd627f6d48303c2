"""Run one case: ``python run.py MODULE.FUNCTION``, directly or under torchrun."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    module, _, function = sys.argv[1].rpartition(".")
    getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    main()
