"""The table of incompatible versions, and the sources of installed versions."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.run import Run
from stallwatch_lint.script import Script, parse_script
from stallwatch_lint.versions import (
    check_versions,
    conflicts_among,
    fits,
    parse_versions,
    version_conflicts,
)
from stallwatch_rules.pages.catalogue import Catalogue


@pytest.mark.parametrize(
    ("versions", "rules"),
    [
        ({"deepspeed": "0.14.0", "torch": "2.4.0+cu121"}, ["package-versions-conflict"]),
        ({"deepspeed": "0.14.4", "torch": "2.4.0+cu121"}, []),
        ({"deepspeed": "0.14.0", "torch": "2.3.1"}, []),
        ({"peft": "0.17.1", "transformers": "5.0.0"}, ["peft-version-mismatch"]),
        ({"peft": "0.18.0", "transformers": "5.0.0"}, []),
        ({"transformers": "4.57.1", "huggingface-hub": "1.0.1"}, ["package-versions-conflict"]),
        ({"deepspeed": "0.15.0", "pydantic": "1.10.2"}, ["package-versions-conflict"]),
        ({"deepspeed": "unknown", "torch": "2.4"}, []),
        ({"deepspeed": "0.19.8", "torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}, []),
        ({}, []),
    ],
)
def test_conflicting_versions_are_found(versions: dict[str, str], rules: list[str]) -> None:
    assert [entry.rule for entry in conflicts_among(versions)] == rules


def test_conditional_entries_apply_only_to_matching_runs() -> None:
    def severities(versions: dict[str, str], used: str, **zero: object) -> list[str]:
        script = parse_script(used, "train.py")
        assert isinstance(script, Script)
        config = DsConfig({"zero_optimization": zero}, "ds.json")
        return [check_version.severity for check_version in check_versions(Run(config, [script], versions))]

    versions = {"trl": "0.14.0", "deepspeed": "0.16.4"}
    assert severities(versions, "GRPOTrainer()", stage=3) == ["likely"]
    assert not severities(versions, "GRPOTrainer()", stage=2)
    assert not severities(versions, "SFTTrainer()", stage=3)
    old = {"deepspeed": "0.15.3", "transformers": "4.44.2"}
    assert not severities(old, "", stage=3)
    assert len(severities(old, "", stage=3, stage3_prefetch_bucket_size="auto")) == 1


def test_each_entry_has_a_range_a_source_and_a_page(catalogue: Catalogue) -> None:
    assert len(version_conflicts()) >= 10
    for entry in version_conflicts():
        assert len(entry.ranges) >= 2 and all(SpecifierSet(item) for item in entry.ranges.values())
        assert entry.source and entry.rule in catalogue.pages


def test_versions_are_read_from_a_requirements_file() -> None:
    text = """\
torch==2.6.0+cu124
transformers>=4.40
-e git+https://x/y
# deepspeed==1
Huggingface_Hub==0.30 ; python_version>'3'
trl    0.12.2
peft==0.*
"""
    assert parse_versions(text) == {"torch": "2.6.0+cu124", "huggingface-hub": "0.30", "trl": "0.12.2"}


@pytest.mark.parametrize("version", ["2.6.0", "2.6.0+cu124", "2.6.0a0+df5bbc09d1.nv24.12"])
def test_local_builds_count_as_their_release(version: str) -> None:
    assert fits({"torch": version}, "torch", ">=2.6") and not fits({"torch": version}, "torch", "<2.6")
