"""Attacks by unexpected bytes: nesting, huge numbers, halves of characters, odd dates, pickles."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from pathlib import Path

import msgspec
import pytest

from stallwatch.config.loading import load
from stallwatch_alerts.relay.webhook import WebhookProblem, read_notification
from stallwatch_alerts.store import IncidentStore
from stallwatch_dashboard.data import log_copies
from stallwatch_dashboard.data.source import final_diagnosis
from stallwatch_dashboard.uploads.reading import safe_name
from stallwatch_exporter.checkpoints.checking import check_checkpoint, diagnostic_of
from stallwatch_exporter.checkpoints.formats import check_safetensors
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.probe.layout import FIELDS, Header, pack_header, record_struct
from stallwatch_exporter.rings.probing import RankProcess
from stallwatch_exporter.runs.copies import parse_record
from stallwatch_exporter.runs.runfolder import read_info
from stallwatch_exporter.stacks import queries
from stallwatch_exporter.watching.checkpoints import CheckpointWatch
from stallwatch_exporter.watching.incidents import read_incidents
from stallwatch_lint.check_run import check_run
from stallwatch_lint.parse import MAX_KEYS, key_lines, parse_accelerate, parse_json
from stallwatch_logs.json_files import notebook_lines, trainer_state_lines
from stallwatch_rules.failures.crashes import read_error_file
from stallwatch_rules.lines.ranks import TaskLabels
from stallwatch_rules.records import Diagnosis, Line, Stats
from stallwatch_rules.report.phrases import stats_line
from stallwatch_rules.stacks.reading import from_faulthandler, from_py_spy
from stallwatch_rules.text.masking import masked, repeats

DEEP = b"[" * 100_000 + b"]" * 100_000
STORED = Path(__file__).parents[1] / "release_0_1" / "runs" / "sft"


@pytest.fixture
def incident() -> Incident:
    return msgspec.json.decode((STORED / "incidents.jsonl").read_bytes().splitlines()[0], type=Incident)


@pytest.fixture
def process(tmp_path: Path) -> RankProcess:
    """A rank's process, beside whose ring a test writes what it likes."""
    size = record_struct(FIELDS).size
    path = tmp_path / "0-1-1.ring"
    path.write_bytes(pack_header(Header(size, 2, 0, 0, 1, 1.0, FIELDS)) + bytes(2 * size))
    return RankProcess(path)


def test_nested_webhook_is_rejected_permanently() -> None:
    """An answer that it was not stored would have Alertmanager send the same body again and again."""
    body = b'{"version":"4","groupKey":"","status":"firing","alerts":[{"status":%s}]}' % DEEP
    with pytest.raises(WebhookProblem):
        read_notification(body)


def test_nested_journal_line_does_not_hide_other_incidents(tmp_path: Path, incident: Incident) -> None:
    """An account that can add a line to a run's journal must not blind its readers."""
    (tmp_path / "incidents.jsonl").write_bytes(DEEP + b"\n" + msgspec.json.encode(incident) + b"\n")
    assert [read_incident.id for read_incident in read_incidents(tmp_path)] == [incident.id]


def test_lone_surrogate_in_database_does_not_hide_other_incidents(tmp_path: Path, incident: Incident) -> None:
    """A row with half a surrogate pair, which no UTF-8 holds, is left out like any other unreadable row."""
    store = IncidentStore.at_home(tmp_path)
    store.upsert(incident)
    store.upsert(msgspec.structs.replace(incident, id="other"))
    with store.engine.begin() as connection:
        connection.exec_driver_sql(
            "update incidents set payload = json_set(payload, '$.severity', ?) where id = 'other'", ("XX",)
        )
        connection.exec_driver_sql(r"update incidents set payload = replace(payload, 'XX', '\ud800')")
    assert [item.id for item in store.list()] == [incident.id]
    store.close()


@pytest.mark.parametrize("name", ["agent.json", "diagnosis.json"])
def test_nested_run_record_is_read_as_missing(name: str, tmp_path: Path) -> None:
    """One folder of a shared home must not keep the others from being listed."""
    (tmp_path / name).write_bytes(DEEP)
    assert read_info(tmp_path) is None
    assert not final_diagnosis(tmp_path).verdict


def test_report_that_is_not_utf_8_is_read_as_missing(tmp_path: Path) -> None:
    """The page of the run shows what else is known."""
    (tmp_path / "diagnosis.json").write_bytes(b'{"verdict": "\xff\xfe"}')
    assert not final_diagnosis(tmp_path).verdict


def test_number_beyond_float_range_does_not_end_a_report() -> None:
    """The diagnosis that was kept of a run can hold any number."""
    assert "1 line, 16,777,216.0 TiB" in stats_line(Diagnosis("healthy", stats=Stats(1, 10**400, 1)), "en")


def test_nested_probe_events_do_not_hide_other_events(process: RankProcess) -> None:
    """Training code can write into its side file; the agent reads on behind what is no event."""
    process.path.with_suffix(".jsonl").write_bytes(DEEP + b'\n{"kind": "left", "error": false}\n')
    assert [event["kind"] for event in process.events()] == ["left"]
    process.path.with_suffix(".jsonl").write_bytes(DEEP)
    assert not queries.has_left(process.path)


def test_numbers_beyond_float_range_become_infinite(process: RankProcess) -> None:
    """A counter of 400 digits must not end the thread that gathers stacks."""
    text = '{"asked": "7", "counters": {"step": %s, "name": "\\ud800"}}' % ("9" * 400)
    process.path.with_suffix(queries.ANSWER).write_text(text)
    answer = queries.answer(process.path, "7")
    assert answer is not None
    assert answer["counters"] == {"step": float("inf"), "name": "?"}


def test_nested_answer_of_a_rank_is_rejected(process: RankProcess) -> None:
    """It is as if the rank had not answered: other ways of asking follow."""
    process.path.with_suffix(queries.ANSWER).write_bytes(DEEP)
    assert queries.answer(process.path, "7") is None
    assert from_py_spy(DEEP) == ()


def test_line_number_with_thousands_of_digits_is_not_a_frame() -> None:
    """Python refuses to convert it, and the other frames of the dump must not be lost for that."""
    dump = 'Thread 0x01 (most recent call first):\n  File "a", line {} in f\n  File "b", line 2 in g\n'
    assert [frame.file for frame in from_faulthandler(dump.format("9" * 5000))[0].frames] == ["b"]


def test_nested_error_file_is_read_as_an_ordinary_line() -> None:
    """torchrun's error files are JSON in a log, which anything can print."""
    assert read_error_file(Line(DEEP.decode(), "log", 1), (0, 0)) is None


@pytest.mark.parametrize(
    "value",
    ["[" * 5000 + "]" * 5000, "9" * 5000, "[]\n[" + "a." * 1000 + "a]"],
    ids=["nested", "digits", "dotted"],
)
def test_unreadable_configuration_is_reported_by_name(value: str, tmp_path: Path) -> None:
    """A command continues with the defaults and names the file, for any content of the file."""
    file = tmp_path / "stallwatch.toml"
    file.write_text(f"[alerts]\nurls = {value}\n")
    config = load(file, {}, {"STALLWATCH_HOME": str(tmp_path)}, tmp_path)
    assert str(file) in str(config.problems[0])
    assert any("NOBODY WILL BE NOTIFIED" in str(problem) for problem in config.problems)


def test_setting_with_hundreds_of_digits_is_out_of_range(tmp_path: Path) -> None:
    """It is a number that no float holds, in a variable as well."""
    variables = {"STALLWATCH_HOME": str(tmp_path), "STALLWATCH_ALERTS_KEEP_DAYS": "9" * 400}
    config = load(None, {}, variables, tmp_path)
    assert ["STALLWATCH_ALERTS_KEEP_DAYS" in str(problem) for problem in config.problems] == [True]


@pytest.mark.parametrize("stamp", ["2026-13-01T00:00:00Z", "2026-00-00T00:00:00Z", "0000-01-01T00:00:00Z"])
def test_log_copy_with_an_invalid_day_keeps_its_other_lines(stamp: str, tmp_path: Path) -> None:
    """The page that shows the end of a log shows what is left."""
    copy = tmp_path / "rank0.log"
    copy.write_text(f"{stamp} stdout F odd\n2026-05-02T09:00:00Z stdout F even\n")
    assert parse_record(f"{stamp} stdout F odd".encode()) is None
    assert log_copies.tail(copy).endswith("even")


@pytest.mark.parametrize("text", ['{"a": 1e999, b', "{a: -", "{'a", "{a: '''"])
def test_broken_hjson_file_causes_a_finding(text: str) -> None:
    """The parser of Hjson fails in ways of its own on tokens that are cut."""
    parsed = parse_json(text, "ds.json")
    assert parsed.diagnostics or parsed.config is not None


def test_lone_surrogate_in_a_configuration_becomes_a_question_mark() -> None:
    """A diagnostic that names such a key can be written nowhere."""
    config = parse_json(
        '{"gradient_clippin": "\\ud800", "\\ud800": 1, "fp16": {"\\udfff": []}}', "ds.json"
    ).config
    assert config is not None
    assert config.values == {"gradient_clippin": "?", "?": 1, "fp16": {"?": []}}
    assert check_run(config)


ALIASES = "x0: &x0 [auto]\n" + "".join(
    f"x{n}: &x{n} [*x{n - 1}, *x{n - 1}, *x{n - 1}]\n" for n in range(1, 60)
)


@pytest.mark.parametrize(
    "text",
    [
        "zero_optimization: &a\n  stage: *a",
        "deepspeed_config: &a\n  zero_stage: *a",
        "zero_optimization:\n  stage: &a [*a]",
        ALIASES + "zero_optimization: {stage: *x59}",
        'zero_optimization: {"a": ' + "[" * 300 + "]" * 300 + "}",
    ],
    ids=["itself", "accelerate", "list", "billions", "nested"],
)
def test_endless_yaml_aliases_cause_a_finding(text: str) -> None:
    """A few lines of YAML can stand for more than any memory holds, and for what contains itself."""
    parsed = parse_accelerate(text, "accelerate.yaml")
    assert parsed.config is None
    assert parsed.diagnostics[0].check == "config-unreadable"


@pytest.mark.parametrize(
    "form", ['{"a": 1, "fp16": %s}', "{a: 1, // Hjson\n fp16: %s}"], ids=["JSON", "Hjson"]
)
@pytest.mark.parametrize("depth", [300, 600])
def test_nested_configuration_causes_a_finding(form: str, depth: int) -> None:
    """It is read, but what looks through its values goes down with it."""
    parsed = parse_json(form % ('{"a": ' * depth + "1" + "}" * depth), "ds.json")
    assert parsed.config is None
    assert parsed.diagnostics[0].check == "config-unreadable"


def test_self_referencing_alias_in_hjson_has_no_lines() -> None:
    """Hjson reads a text where YAML, which knows the lines of keys, sees a loop of twice two."""
    assert len(key_lines("&a {x: *a, y: *a, x: *a}")) < MAX_KEYS


def test_pickle_in_a_checkpoint_is_never_executed(tmp_path: Path) -> None:
    """Its opcodes are read; what they would call is not even imported."""
    mark, folder = tmp_path / "ran", tmp_path / "checkpoint"
    folder.mkdir()
    pickle = b"cpathlib\nPath.touch\n(cpathlib\nPath\n(S'%s'\ntRtR." % str(mark).encode()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("m/data.pkl", pickle)
    (folder / "optimizer.pt").write_bytes(b"\x80\x02" + pickle)
    check_checkpoint(folder)
    assert not mark.exists()


def test_long_upload_name_is_truncated_immediately() -> None:
    """A name of a megabyte would be cut byte by byte, each time as a whole."""
    name = "x" * 1_000_000 + "é" * 70 + ".log"
    assert len(safe_name(name, 1).encode()) <= 120
    assert safe_name(name, 1).endswith("é.log")


def test_key_repeated_thousands_of_times_is_reported_with_its_last_line() -> None:
    """Each of many doubled keys was looked for in the whole file."""
    text = "{" + ",\n".join(f'"k{number % 2000}": 1' for number in range(4000)) + "}"
    found = {
        str(diagnostic.what.params["name"]): diagnostic.line
        for diagnostic in parse_json(text, "ds.json").diagnostics
    }
    assert found["k0"] == 2001
    assert len(found) == 2000


@pytest.mark.parametrize("text", ["zero_optimization: " + "{" * 4000, "[" * 4000, "? " * 4000])
def test_nested_yaml_file_is_rejected_immediately(text: str) -> None:
    """PyYAML's own scanner takes minutes for four thousand brackets; libyaml's refuses them."""
    assert [diagnostic.check for diagnostic in parse_accelerate(text, "a.yaml").diagnostics] == [
        "config-unreadable"
    ]


def test_yaml_keys_that_are_not_text_are_ignored() -> None:
    """YAML has keys that are null, numbers and dates; DeepSpeed knows none of them."""
    text = "zero_optimization: {stage: 2, 3: 4}\n?\n: 1\n"
    text += "2026-01-01: x\noptimizer: {type: Adam, params: {1: 2}}\n"
    config = parse_accelerate(text, "a.yaml").config
    assert config is not None
    assert check_run(config) == []


@pytest.mark.parametrize("unit", ["-", " ", ".", "~", "a/", "0a"])
def test_line_of_one_repeated_character_gets_a_template(unit: str) -> None:
    """From each of 200,000 characters the rest of the line was searched: minutes for one line."""
    assert masked(unit * 200_000)


def test_rank_prefix_is_removed_from_a_line_of_repeated_commands() -> None:
    """From each "srun" of a line the rest was searched."""
    labels = TaskLabels()
    assert labels.take("srun " * 200_000) == (None, "", "srun " * 200_000)


def test_count_with_thousands_of_digits_stays_in_the_message() -> None:
    """Ray folds at most what memory holds."""
    text = f"x [repeated {'9' * 5000}x across cluster]"
    assert repeats(text) == (text, 1)
    assert repeats("x  [repeated 3x across cluster] y") == ("x", 3)


@pytest.mark.parametrize(
    "total", ["9" * 4000, str(2**63), "-1", "true"], ids=["long", "beyond", "less", "bool"]
)
def test_invalid_number_of_steps_is_not_added(total: str) -> None:
    """It was written once per entry: a file of 94 KB became lines of 129 MB."""
    text = b'{"max_steps": %s, "log_history": [{}, {"step": 1}]}' % total.encode()
    assert b"".join(trainer_state_lines(iter([text]))) == b'{}\n{"step": 1}\n'


def test_json_with_millions_of_empty_values_is_not_decoded() -> None:
    """In memory each of them takes 30 times its text; the file is read as any other."""
    text = b'{"log_history": [%s{}], "cells": []}' % (b"[]," * 1_000_000)
    assert list(trainer_state_lines(iter([text]))) == [text]
    assert list(notebook_lines(iter([text]))) == [text]


def safetensors(path: Path, *tensors: tuple[str, list[int]]) -> Path:
    """Write a file whose tensors have these names and shapes, and no bytes."""
    entries = {name: {"dtype": "U8", "shape": shape, "data_offsets": [0, 0]} for name, shape in tensors}
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


@pytest.mark.parametrize("shape", [[0, 2**63], [0] * 65], ids=["number", "dimensions"])
def test_impossible_tensor_shape_is_reported_as_a_false_header(shape: list[int], tmp_path: Path) -> None:
    """The product of many long numbers takes time that grows with the square of the header's length."""
    file = safetensors(tmp_path / "model.safetensors", ("a", shape), ("b", [2**63 - 1, 0]), ("c", [0] * 64))
    found = [
        (check_safetensor.kind, check_safetensor.what.params["names"])
        for check_safetensor in check_safetensors(file)
    ]
    assert found == [("lying-header", "a")]


def test_rank_numbers_in_file_names_are_not_missing_parts(tmp_path: Path) -> None:
    """A few empty files would stand for as many ranks as their numbers multiplied."""
    for rank in range(2):
        (tmp_path / f"zero_pp_rank_131000_mp_rank_{rank}_optim_states.pt").touch()
    kinds = {item.kind for item in check_checkpoint(tmp_path)}
    assert kinds == {"empty-file", "missing-model-states"}


def test_checkpoint_names_are_written_as_safe_text(tmp_path: Path) -> None:
    """Names of tensors, shards and folders reach a terminal and JSON with what a terminal obeys taken out."""
    safetensors(tmp_path / "model.safetensors", ("a\ud800\x85\u202eb", [1]))
    (tmp_path / "latest").write_text("x\u202e\x85y", encoding="utf-8")
    index = {"weight_map": {"w": "s\udc80\x9b\u202et"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    named = {item.kind: item.what.params for item in check_checkpoint(tmp_path)}
    assert named["lying-header"]["names"] == "a???b"
    assert named["latest-missing"]["folder"] == "x??y"
    assert named["missing-shards"]["names"] == "s???t"


def test_checkpoint_file_with_a_name_that_is_not_utf_8_is_reported(tmp_path: Path) -> None:
    """One such file ended the check of the whole folder, and the agent could not record the incident."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.safetensors")).touch()
    assert [diagnostic_of(item).file for item in check_checkpoint(tmp_path)] == [f"{tmp_path}/?.safetensors"]
    watch = CheckpointWatch(begin=lambda job: job())
    watch.take({"kind": "checkpoint", "rank": 0, "time": 1.0, "path": str(tmp_path)}, 1, 0.0)
    matches = [match for now in range(200) for match in watch.look(float(now))]
    assert [match.captures["path"] for match in matches] == [f"{tmp_path}/?.safetensors"]
    assert msgspec.json.encode(matches)
