"""The reproductions are programs beside these tests, and find each other the way a script does."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
