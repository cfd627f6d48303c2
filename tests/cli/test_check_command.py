"""``stallwatch check`` as a command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import Result

from stallwatch.cli.check_inputs import PACKAGES, versions_of_python
from stallwatch_exporter.checkpoints import checking
from stallwatch_exporter.checkpoints.checking import listed

SOUND = '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}'


@pytest.fixture
def freeze(tmp_path: Path) -> str:
    (tmp_path / "freeze.txt").write_text("deepspeed==0.16.3\ntrl==0.12.2\n")
    return str(tmp_path / "freeze.txt")


def test_configuration_without_problems_passes(stallwatch, tmp_path: Path, freeze: str) -> None:
    (tmp_path / "ds.json").write_text(SOUND)
    result: Result = stallwatch("check", "ds.json", "--versions", freeze)
    assert result.exit_code == 0
    assert result.stdout.startswith("No known problem was found for this run.\n")
    assert "deepspeed 0.16.3" in result.stdout


def test_certain_failure_is_reported_with_its_place_and_fix(stallwatch, tmp_path: Path, freeze: str) -> None:
    (tmp_path / "ds.json").write_text(
        '{\n "zero_optimization": {\n  "stage": 3,\n  "log_trace_cache_warnings": true\n }\n}'
    )
    result: Result = stallwatch("check", "ds.json", "--versions", freeze)
    assert result.exit_code == 1
    assert (
        " FAILS   DeepSpeed 0.16.3 rejects the key zero_optimization.log_trace_cache_warnings"
        in result.stdout
    )
    assert "ds.json:4" in result.stdout
    assert "stallwatch rules show deepspeed-config-invalid" in result.stdout
    assert "必定失败" in stallwatch("check", "ds.json", "--versions", freeze, "--language", "zh").stdout


def test_likely_failure_is_an_error_only_with_strict(stallwatch, tmp_path: Path, freeze: str) -> None:
    (tmp_path / "ds.json").write_text('{"optimizer": {"type": "AdamW", "params": {"lr": "1e-4"}}}')
    arguments = ("check", "ds.json", "--versions", freeze)
    assert (stallwatch(*arguments).exit_code, stallwatch(*arguments, "--strict").exit_code) == (0, 1)
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    advised: Result = stallwatch(*arguments, "--strict")
    assert (advised.exit_code, "ADVICE" in advised.stdout) == (0, True)


def test_json_output_contains_the_findings(stallwatch, tmp_path: Path, freeze: str) -> None:
    (tmp_path / "ds.json").write_text(SOUND)
    (tmp_path / "train.py").write_text("import deepspeed\ndeepspeed.initialize(model=None)\n")
    result: Result = stallwatch("check", "ds.json", "train.py", "--json", "--versions", freeze)
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["schema"], report["ok"], report["problems"]) == (1, False, [])
    (finding,) = report["findings"]
    assert (finding["check"], finding["severity"], finding["file"], finding["line"]) == (
        "initialize-without-model",
        "fails",
        "train.py",
        2,
    )


def test_unreadable_file_does_not_hide_findings_of_other_files(
    stallwatch, tmp_path: Path, freeze: str
) -> None:
    (tmp_path / "train.py").write_text("import deepspeed\ndeepspeed.initialize(model=None)\n")
    result: Result = stallwatch("check", "none.json", "train.py", "--versions", freeze)
    assert result.exit_code == 2
    assert "none.json: cannot be read: No such file or directory" in result.stderr
    assert "deepspeed.initialize is called without a model" in result.stdout


def test_syntax_error_fails_unless_a_newer_python_accepts_the_script(
    stallwatch, tmp_path: Path, freeze: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.py").write_text("import torch\ndef f(:\n")
    failed: Result = stallwatch("check", "bad.py", "--versions", freeze)
    assert failed.exit_code == 1 and " FAILS " in failed.stdout and "bad.py:2" in failed.stdout
    monkeypatch.setattr("stallwatch_lint.script.newer_syntax", lambda *_: ("type X = …", "3.99"))
    newer: Result = stallwatch("check", "bad.py", "--versions", freeze)
    assert newer.exit_code == 2 and "bad.py:2: type X = … requires Python 3.99 or later" in newer.stderr
    assert "No verdict" in newer.stdout


def test_unreadable_input_prevents_an_all_clear(stallwatch, tmp_path: Path, freeze: str) -> None:
    (tmp_path / "ds.json").write_text(SOUND)
    for arguments in (("none.json",), ("ds.json", "none.json"), ("--checkpoint", "none")):
        result: Result = stallwatch("check", *arguments, "--versions", freeze)
        assert result.exit_code == 2
        first = result.stdout.splitlines()[0]
        assert first == "No verdict is possible, because some of the input could not be read."
        report = json.loads(stallwatch("check", *arguments, "--versions", freeze, "--json").stdout)
        assert (report["ok"], len(report["problems"])) == (False, 1)


def test_check_of_versions_alone_says_that_only_versions_were_checked(stallwatch, freeze: str) -> None:
    result: Result = stallwatch("check", "--versions", freeze)
    assert result.exit_code == 0
    assert result.stdout.startswith("Only versions were checked, and no known problem was found.\n")
    assert "只检查了版本" in stallwatch("check", "--versions", freeze, "--language", "zh").stdout


def test_file_named_by_the_accelerate_configuration_is_checked(
    stallwatch, tmp_path: Path, freeze: str
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ds.json").write_text(
        '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}'
    )
    (tmp_path / "configs" / "accelerate.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    )
    result: Result = stallwatch("check", "configs/accelerate.yaml", "--versions", freeze)
    assert result.exit_code == 1
    assert "train_batch_size is 8, which does not equal 4 * 1 * 4 ranks" in result.stdout


def test_broken_checkpoint_is_reported(stallwatch, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").write_bytes(b"\xff" * 12)
    result: Result = stallwatch("check", "--checkpoint", "out")
    assert result.exit_code == 1
    assert "out/model.safetensors" in result.stdout
    assert stallwatch("check", "--checkpoint", "none").exit_code == 2


def test_folder_without_a_checkpoint_does_not_pass(stallwatch, tmp_path: Path) -> None:
    """The files have a checkpoint's extension and other contents."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "garbage.bin").write_bytes(b"\xc3\x35\xd2\x27" * 100)
    (tmp_path / "out" / "notes.txt").write_text("no weights")
    result: Result = stallwatch("check", "--checkpoint", "out")
    assert result.exit_code == 2
    assert "out: no checkpoint file found" in result.stderr
    assert "garbage.bin: neither a zip archive nor a pickle" in result.stderr
    assert "No known problem was found" not in result.stdout
    (tmp_path / "out" / "old.pt").write_bytes(b"\x80\x02\x8a")  # start of a torch file before 1.6
    result = stallwatch("check", "--checkpoint", "out")
    assert result.exit_code == 0
    assert "out (1 file, without garbage.bin: neither a zip archive nor a pickle)" in result.stdout


def test_invalid_arguments_are_reported(stallwatch) -> None:
    assert stallwatch("check").exit_code == 2
    result: Result = stallwatch("check", "notes.txt")
    assert result.exit_code == 2
    assert "the name must end in .py" in result.stderr
    assert stallwatch("check", "--python", "/none/python").exit_code == 2


def test_versions_are_read_from_another_interpreter() -> None:
    found = versions_of_python(sys.executable)
    assert found["numpy"] and set(found) <= set(PACKAGES)


def test_search_for_checkpoints_is_bounded(
    stallwatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (tmp_path / f"home/{number}").mkdir(parents=True)
    whole = listed(tmp_path / "home", most=5)
    assert whole.whole and len(whole.folders) == 6
    few = listed(tmp_path / "home", most=4)
    assert not few.whole
    monkeypatch.setattr(checking, "listed", lambda *_, **__: few)
    result: Result = stallwatch("check", "--checkpoint", str(tmp_path / "home"))
    assert result.exit_code == 2
    assert "specify the path of the checkpoint's folder" in result.stderr


def test_configuration_that_transformers_reads_must_be_strict_json(
    stallwatch, tmp_path: Path, freeze: str
) -> None:
    (tmp_path / "ds.json").write_text('{\n "zero_optimization": {"stage": 2,},\n}')
    (tmp_path / "own.py").write_text("import deepspeed\ndeepspeed.initialize(model=m, config='ds.json')\n")
    (tmp_path / "hf.py").write_text("from transformers import Trainer\nTrainer(model=m).train()\n")
    alone: Result = stallwatch("check", "ds.json", "own.py", "--versions", freeze)
    assert (alone.exit_code, "ADVICE" in alone.stdout) == (0, True)
    read: Result = stallwatch("check", "ds.json", "hf.py", "--versions", freeze)
    assert (read.exit_code, " FAILS   this file is not valid JSON" in read.stdout) == (1, True)
    assert "(column " in read.stdout and "ds.json:2" in read.stdout
