"""Trainings that are watched by a probe, for all tests beside this file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ranks import Ranks  # it lies beside this file


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    """Programs of this test, as one rank."""
    return Ranks(tmp_path)
