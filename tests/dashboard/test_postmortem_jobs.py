"""The post-mortem page for uploads of several jobs: a table, and a choice of the report."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest

pytest.importorskip("streamlit.testing.v1")
from drivenpages import HOSTILE, page, texts
from streamlit.testing.v1 import AppTest

from stallwatch_dashboard.settings import DashboardSettings
from stallwatch_dashboard.uploads import reading
from stallwatch_dashboard.uploads.reports import Reports

CHOICE = "which_job"  #: key of the selection
TOGETHER = ""  #: all files as one run

pytestmark = pytest.mark.usefixtures("page_settings")

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def steps(day: int, last: int) -> bytes:
    lines = (
        f"2026-11-{day} 10:{step:02}:00 INFO step {step}/50 loss 1.{step:02}\n" for step in range(1, last + 1)
    )
    return "".join(lines).encode()


FILES = [
    ("slurm-1001.out", steps(10, 50)),
    ("slurm-1002.out", steps(14, 20)),
    ("slurm-1002.err", OOM.encode()),
    ("slurm-1003.out", steps(20, 30)),
]


def upload(app: AppTest, *files: tuple[str, bytes]) -> AppTest:
    return app.get("file_uploader")[0].set_value([(name, data, "text/plain") for name, data in files]).run()


def table(app: AppTest) -> list[list[str]]:
    rows: list[list[str]] = app.dataframe[0].value.values.tolist()
    return rows


def test_each_job_has_a_row_and_the_newest_failed_job_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Any] = []
    real = reading.read_uploads

    def read(*a: Any, **k: Any) -> reading.Answer:
        reads.append((k["job"], k["together"]))
        return real(*a, **k)

    monkeypatch.setattr(reading, "read_uploads", read)
    app = upload(page("postmortem"), *FILES)
    assert not app.exception
    assert [row[:4] for row in table(app)] == [
        ["1003", "UNFINISHED", "The log ends mid-run.", "30 of 50"],
        ["1002", "FAILED", "cuda-oom", "20 of 50"],
        ["1001", "FINISHED", "", "50 of 50"],
    ]
    choice = app.selectbox(key=CHOICE)
    assert choice.value == "1002" and choice.options[0] == "1003 · UNFINISHED"
    assert "ran out of memory" in texts(app, "markdown") and "OutOfMemoryError" in texts(app, "code")
    # another job's report, a report that was shown before, and all files as one run
    choice.set_value("1003").run()
    assert not app.exception and "ran out of memory" not in texts(app, "markdown")
    assert "1 – 30 of 50" in texts(app, "text")
    app.selectbox(key=CHOICE).set_value("1002").run()
    assert "ran out of memory" in texts(app, "markdown")
    app.selectbox(key=CHOICE).set_value(TOGETHER).run()
    assert not app.exception and "4 files" in texts(app, "caption") and len(table(app)) == 3
    app.selectbox(key=CHOICE).set_value("1003").run()
    assert reads == [("", False), ("1003", False), ("", True)]
    # new files reset the choice
    upload(app, ("slurm-7001.out", steps(10, 50)), ("slurm-7002.out", OOM.encode()))
    assert not app.exception and app.selectbox(key=CHOICE).value == "7002"


def test_report_of_the_selected_job_is_kept(page_settings: DashboardSettings) -> None:
    app = upload(page("postmortem"), *FILES)
    app.button(key="keep_report").click().run()
    assert not app.exception
    (kept,) = Reports(page_settings.home).all()
    assert sorted(kept.names) == ["slurm-1002.err", "slurm-1002.out"]
    assert kept.diagnosis.verdict == "failed"


def test_archive_can_contain_several_jobs() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in FILES:
            archive.writestr(f"logs/{name}", data)
    app = upload(page("postmortem", lang="zh"), ("logs.zip", packed.getvalue()))
    assert not app.exception and app.selectbox(key=CHOICE).value == "1002"
    assert list(app.dataframe[0].value) == ["作业", "结论", "原因", "最后一步", "最后写入时间", "文件数"]
    assert "▶" in texts(app, "code")
    app.selectbox(key=CHOICE).set_value("1001").run()
    assert not app.exception and "CUDA" not in texts(app, "code")


def test_single_job_has_no_table() -> None:
    app = upload(page("postmortem"), *FILES[1:3])
    assert not app.exception and not [item for item in app.selectbox if item.key == CHOICE]
    log = f"Traceback (most recent call last):\nOddError: {HOSTILE}\n".encode()
    app = upload(page("postmortem"), ("slurm-1001.out", log), ("slurm-1002.out", steps(10, 50)))
    assert not app.exception and "OddError" in str(table(app))
    assert all("<script>" not in str(element.value).replace("\\<", "") for element in app.markdown)


def test_table_remains_if_reading_a_job_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    app = upload(page("postmortem"), *FILES)

    def dies(*_: Any, **__: Any) -> reading.Answer:
        raise reading.ReadingFailed("exit code -9")

    monkeypatch.setattr(reading, "read_uploads", dies)
    app.selectbox(key=CHOICE).set_value("1001").run()
    assert not app.exception and "exit code" in texts(app, "error") and len(table(app)) == 3
