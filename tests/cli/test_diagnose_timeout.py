"""``stallwatch diagnose --timeout``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from stallwatch_logs.inputs import Limits

Stallwatch = Callable[..., Result]

LOG = (
    b"step 1/900 loss 1.5\n" * 60
    + b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)


def test_files_that_were_not_read_in_time_are_reported(
    tmp_path: Path, stallwatch: Stallwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rank0.log").write_bytes(LOG)
    monkeypatch.setattr(Limits, "time_left", property(lambda _: 0.0))
    done = stallwatch("diagnose", "--timeout", "1s", "--json=2", "rank0.log")
    assert "--timeout: the time was too short to read 1 file completely" in done.stderr
    assert f'"unread_bytes": {len(LOG)}' in done.stdout
    assert done.exit_code == 3  # nothing shows the outcome of the run


@pytest.mark.parametrize("text", ["0", "soon", "-5s", "1e400s", "5 weeks"])
def test_invalid_duration_is_refused(stallwatch: Stallwatch, text: str) -> None:
    done = stallwatch("diagnose", f"--timeout={text}", "rank0.log")
    assert done.exit_code == 2
    assert "use a value such as 30s, 5m, or 2h" in done.stderr
