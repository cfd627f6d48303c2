from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml
from click.testing import Result

Stallwatch = Callable[..., Result]

OWN = """---
id: our-disk-array
title: The disk array of the lab fell asleep
title_zh: 实验室的磁盘阵列休眠了
family: storage
role: cause
harm: fatal
status: incubating
since: "1.0"
patterns:
  - 'array (?P<name>\\w+) is asleep'
---

# The disk array of the lab fell asleep

## What happened

The array went to sleep while a checkpoint was written.

## Why

It sleeps after an hour.

## Fix

1. Wake it: `ssh array wake`.

## When it is harmless

Never.

## Samples

```log fires
array lab3 is asleep
```

```log quiet
array lab3 is awake
```
"""


def test_export_writes_three_files_including_custom_pages(stallwatch: Stallwatch, tmp_path: Path) -> None:
    page = tmp_path / "mine/storage/our-disk-array.md"
    page.parent.mkdir(parents=True)
    page.write_text(OWN)
    result = stallwatch("rules", "export", "--prometheus", "out/rules", "--rules", "mine")
    assert result.exit_code == 0, result.output
    names = ["recording.yml", "alerting.yml", "catalogue.yml"]
    assert result.stdout.splitlines() == [f"out/rules/{name}" for name in names]
    groups = yaml.safe_load((tmp_path / "out/rules/catalogue.yml").read_text())["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    assert "StallwatchCudaOom" in rules
    own = rules["StallwatchOurDiskArray"]["annotations"]
    assert own["summary"] == "{{ $labels.run }}: The disk array of the lab fell asleep"
    assert own["description"].endswith("First remedy: Wake it: ssh array wake.")


def test_invalid_page_prevents_the_export(stallwatch: Stallwatch, tmp_path: Path) -> None:
    page = tmp_path / "mine/storage/our-disk-array.md"
    page.parent.mkdir(parents=True)
    page.write_text(OWN.replace("role: cause", "role: nonsense"))
    result = stallwatch("rules", "export", "--prometheus", "out", "--rules", "mine")
    assert result.exit_code == 2
    assert "our-disk-array.md" in result.stderr and "role" in result.stderr
    assert not (tmp_path / "out").exists()


def test_output_path_that_is_a_file_is_reported(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    result = stallwatch("rules", "export", "--prometheus", "taken/below")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr and "choose another folder" in result.stderr
