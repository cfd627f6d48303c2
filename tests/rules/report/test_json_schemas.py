"""Schema 2 of the report for programs: every key is documented, every text has its message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch_rules.messages import bilingual, message
from stallwatch_rules.records import (
    Contribution,
    Diagnosis,
    Finding,
    FindingChange,
    JobSummary,
    NearPage,
    NewLines,
    Noted,
    PassedOver,
    Place,
    Primary,
    Series,
    Start,
    UnknownException,
)
from stallwatch_rules.report.json import to_json
from stallwatch_rules.stacks.records import Collectives, StackGroup

DOCS = Path(__file__).parents[3] / "docs" / "json.md"
TITLE = bilingual("Out of memory", "显存不足")
NOTE = message("diagnosis.silent", silence="9 s", threshold="3 s") + message("diagnosis.nothing-says-why")
PLACE = Place(0, "/home/ada/run.log", 7, None, 3, "token=hf_abcdefghijklmnopqrstuvwxyzabcdefgh")
WHOLE = Diagnosis(
    "failed",
    Primary(
        *("cuda-oom", TITLE, "cause", "fatal", 0.9, 0, "/home/ada/run.log", 7, None, 3),
        *(["a line"], {"tried_mib": "2048"}, TITLE, [TITLE]),
        apart=[StackGroup([1], "code", collectives={"0": Collectives(7)})],
    ),
    [Finding("cuda-oom", TITLE, "cause", "fatal", 1, [0], PLACE, PLACE, NOTE)],
    [UnknownException("OddError", "odd", [0], 1, PLACE, [], nearest=[NearPage("cuda-oom", TITLE, 0.4)])],
    notes=[message("diagnosis.other-run-time", one="a.log", other="b.log"), "a.log: cannot be read"],
    digest=[message("diagnosis.digest", count=1, ranks="0", what=TITLE)],
    ending=message("run.exited", code=1),
    new_lines=[NewLines("worker <n>", "worker 7", "error", 1, [0], PLACE, PLACE)],
    starts=[Start(1, "/home/ada/run.log", 1, 7, "failed", "cuda-oom", TITLE)],
    series=[Series("loss", 0, [1.0], [2.0])],
    explained=[
        Contribution(
            "end",
            [FindingChange("cuda-oom", None, "fatal", None, "cause", NOTE)],
            [Noted(None, ["died"])],
            [PassedOver("cuda-oom", "order")],
        )
    ],
)
JOB = JobSummary(
    *("1001", "failed", message("report.failed"), "cuda-oom", 0.9, TITLE, 3, 9, False, None),
    ["/home/ada/run.log"],
)
#: Path of each object of docs/json.md in the report.
OBJECTS = {
    "Report": (),
    "Text": ("primary", "title"),
    "Primary": ("primary",),
    "Stack group": ("primary", "apart", 0),
    "Collectives": ("primary", "apart", 0, "collectives", "0"),
    "Finding": ("findings", 0),
    "Place": ("findings", 0, "first"),
    "Unknown exception": ("unknown", 0),
    "Near page": ("unknown", 0, "nearest", 0),
    "Progress": ("progress",),
    "Stats": ("stats",),
    "New lines": ("new_lines", 0),
    "Start": ("starts", 0),
    "Job": ("jobs", 0),
    "Contribution": ("explained", 0),
    "Change": ("explained", 0, "changes", 0),
    "Noted": ("explained", 0, "noted", 0),
    "Passed over": ("explained", 0, "passed_over", 0),
}


def report(language: str = "en") -> Any:
    return json.loads(to_json(WHOLE, language, jobs=[JOB], explain=True, schema=2))


def at(found: Any, *path: str | int) -> Any:
    for step in path:
        found = found[step]
    return found


def described(title: str) -> set[str]:
    part = DOCS.read_text().partition(f"\n### {title}\n")[2].split("\n#", 1)[0]
    rows = re.findall(r"^\| (.+?) \|", part, re.MULTILINE)
    return {key for row in rows[1:] for key in re.findall(r"`(\w+)`", row)}


FREE = ("params", "captures", "environment")  #: objects with keys of a message, a pattern and a log


def objects(found: Any) -> Iterator[dict[str, Any]]:
    inner: list[Any] = []
    if isinstance(found, dict):
        yield found
        inner = [value for key, value in found.items() if key not in (*FREE, "collectives")]
        inner += found.get("collectives", {}).values()  # the keys of this object are ids
    elif isinstance(found, list):
        inner = found
    for item in inner:
        yield from objects(item)


@pytest.mark.parametrize("title", OBJECTS)
def test_every_key_is_documented(title: str) -> None:
    found = at(report(), *OBJECTS[title])
    keys = {*found, "then"} if title == "Text" else {*found}
    assert described(title) == keys


def test_every_object_is_documented() -> None:
    known = [described(title) for title in OBJECTS] + [{"id", "params", "text"}]
    assert all({*item} in known for item in objects(report()))


def test_text_has_its_message_id_and_parameters() -> None:
    found = report()
    assert found["primary"]["title"] == {
        "id": "text",
        "params": {"en": "Out of memory", "zh": "显存不足"},
        "text": "Out of memory",
    }
    assert report("zh")["primary"]["title"]["text"] == "显存不足"
    assert found["primary"]["evidence"] == [{"id": None, "params": {}, "text": "a line"}]
    note = found["findings"][0]["note"]
    assert (note["id"], note["params"]["silence"]) == ("diagnosis.silent", "9 s")
    assert [item["id"] for item in note["then"]] == ["diagnosis.nothing-says-why"]
    assert note["text"].endswith(note["then"][0]["text"])
    assert found["digest"][0]["params"]["what"]["text"] == "Out of memory"
    assert found["jobs"][0]["title"]["text"] == "Out of memory"
    assert json.loads(to_json(Diagnosis("finished"), schema=2))["ending"] is None


def test_report_contains_no_secret() -> None:
    found = report()
    assert "hf_abc" not in json.dumps(found)
    for place in ("primary", "findings", "starts"):
        one = found[place] if place == "primary" else found[place][0]
        assert one.get("file", one.get("first", {}).get("file")) == "/home/ada/run.log"
    assert found["jobs"][0]["files"] == ["/home/ada/run.log"]


def test_schema_1_is_unchanged() -> None:
    found = json.loads(to_json(WHOLE, jobs=[JOB]))
    assert [*found][:3] == ["verdict", "primary", "findings"] and found["schema"] == 1
    assert not {"starts", "interrupted_by", "series", "explained"} & {*found}
    assert found["primary"]["harm"] == "fatal" and found["primary"]["title"] == "Out of memory"
    assert not {"badge", "interrupted_by"} & {*found["jobs"][0]}
    user = msgspec.structs.replace(WHOLE, verdict="interrupted", primary=None, interrupted_by="user")
    limit = msgspec.structs.replace(WHOLE, verdict="interrupted", interrupted_by="time-limit")
    assert [json.loads(to_json(item))["verdict"] for item in (user, limit)] == ["healthy", "failed"]
    assert [json.loads(to_json(item, schema=2))["verdict"] for item in (user, limit)] == ["interrupted"] * 2
