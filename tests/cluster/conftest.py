"""Path setup: the simulator and the lab are benchmark scripts that import each other as scripts do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
