"""Checkpoints that the real libraries wrote, complete and damaged in realistic ways."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from launching import forked, launch
from record import environment

from stallwatch_exporter.checkpoints.checking import check_checkpoint, checked_files
from stallwatch_exporter.checkpoints.formats import Fault
from stallwatch_rules.locale import render

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.repro


def kinds(faults: list[Fault]) -> list[str]:
    return [fault.kind for fault in faults]


@pytest.fixture
def weights() -> dict[str, object]:
    return {
        "embed.weight": torch.randn(7, 5),
        "blocks.0.up.weight": torch.randn(4, 5).bfloat16(),
        "scale": torch.tensor(2.0),
        "steps": torch.arange(3),
    }


@pytest.fixture
def sharded(tmp_path: Path, weights: dict[str, object]) -> Path:
    """Write two shards, their index, and the optimizer's state beside them."""
    names = list(weights)
    where = {name: f"model-0000{1 + (place > 1)}-of-00002.safetensors" for place, name in enumerate(names)}
    for shard in sorted(set(where.values())):
        part = {name: weights[name] for name in names if where[name] == shard}
        safetensors.save_file(part, tmp_path / shard, metadata={"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    return tmp_path


def test_complete_checkpoint_has_no_faults(sharded: Path) -> None:
    assert checked_files(sharded) == (5, [])
    assert check_checkpoint(sharded) == []


def test_bare_pickle_and_other_programs_files_are_let_be(tmp_path: Path, weights: dict[str, object]) -> None:
    torch.save(weights, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "vocabulary.bin").write_bytes(b"\x01\x02words")
    assert check_checkpoint(tmp_path) == []
    assert checked_files(tmp_path) == (1, ["vocabulary.bin"])
    assert checked_files(tmp_path / "vocabulary.bin") == (0, ["vocabulary.bin"])


@pytest.mark.parametrize("keep", [0, 5, 60, -3])
def test_safetensors_file_that_was_cut(sharded: Path, keep: int) -> None:
    file = sharded / "model-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert kinds(check_checkpoint(file)) == ["truncated" if keep else "empty-file"]


def test_header_that_contradicts_itself(sharded: Path) -> None:
    file = sharded / "model-00001-of-00002.safetensors"
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["embed.weight"]["shape"] = [7, 6]
    changed = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(changed)) + changed + content[8 + length :])
    (fault,) = check_checkpoint(file)
    assert (fault.kind, "embed.weight" in render(fault.what)) == ("lying-header", True)


def test_header_of_other_types_is_a_fault_and_no_error(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [4, 0]}, "b": 1}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    header = json.dumps({"a": {"dtype": ["F32"], "shape": [0], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "other.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert kinds(check_checkpoint(tmp_path)) == ["lying-header", "empty-tensors"]


def test_rank_of_an_absurd_number_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "zero_pp_rank_999999999999_mp_rank_00_optim_states.pt").write_bytes(b"\x80\x02")
    assert kinds(check_checkpoint(tmp_path)) == ["missing-model-states"]


def test_header_longer_than_the_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    assert kinds(check_checkpoint(file)) == ["truncated"]


def test_index_with_missing_shards_or_tensors_is_reported(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    listed["weight_map"]["head.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(listed))
    (sharded / "model-00002-of-00002.safetensors").unlink()
    assert kinds(check_checkpoint(index)) == ["missing-shards", "missing-tensors"]


def test_index_does_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../../secret.safetensors"}}))
    assert kinds(check_checkpoint(tmp_path)) == ["index-outside"]


def test_torch_file_that_was_cut(sharded: Path) -> None:
    file = sharded / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:-200])
    assert kinds(check_checkpoint(file)) == ["truncated"]


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    torch.save({"a": Trap(), "b": torch.zeros(0)}, tmp_path / "pytorch_model.bin")
    assert kinds(check_checkpoint(tmp_path)) == ["empty-tensors"]
    assert not (tmp_path / "sprung").exists()


def test_lone_empty_buffer_may_be_meant(tmp_path: Path, weights: dict[str, object]) -> None:
    safetensors.save_file({**weights, "cache": torch.zeros(0)}, tmp_path / "model.safetensors")
    assert [fault.fails for fault in check_checkpoint(tmp_path)] == [False]


def test_latest_file_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("global_step7")
    assert kinds(check_checkpoint(tmp_path)) == ["latest-missing"]
    with pytest.raises(FileNotFoundError):
        check_checkpoint(tmp_path / "none")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of a real ZeRO-3 run: a ZeRO checkpoint, and ungathered weights."""
    pytest.importorskip("deepspeed")
    out = tmp_path_factory.mktemp("saved")
    _, printed = launch(forked("bare_save.py", str(out)), environment(None))
    assert (out / "pytorch_model.bin").exists(), printed
    return out


def test_weights_saved_without_gathering_are_empty(saved: Path) -> None:
    for file in ("model.safetensors", "pytorch_model.bin"):
        (fault,) = check_checkpoint(saved / file)
        assert (fault.kind, fault.rule, fault.fails) == ("empty-tensors", "zero3-empty-state-dict", True)
        assert render(fault.what).startswith("22 of 22 tensors are empty: ") and ".weight" in render(
            fault.what
        )


def test_zero_checkpoint_is_whole_until_a_rank_is_missing(saved: Path, tmp_path: Path) -> None:
    assert check_checkpoint(saved / "zero") == []
    copy = shutil.copytree(saved / "zero", tmp_path / "copy")
    step = copy / (copy / "latest").read_text()
    (gone,) = step.glob("*zero_pp_rank_1_mp_rank_00_optim_states.pt")
    gone.unlink()
    (fault,) = check_checkpoint(copy)
    assert (fault.kind, fault.path) == ("missing-optim-states", step)
    # of this rank, only the references in the other ranks' files remain
    for part in step.glob("*zero_pp_rank_1_*"):
        part.unlink()
    assert kinds(check_checkpoint(copy)) == ["missing-optim-states", "missing-model-states"]
