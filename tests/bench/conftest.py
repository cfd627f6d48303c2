"""Path setup: the benchmarks are scripts that import each other as scripts do."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "bench"), str(_ROOT / "tests" / "repro")]
