"""The simulator and the lab are scripts of the benches, which find each other the way scripts do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
