"""``stallwatch rules``: list, show, check, test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from stallwatch_rules.pages.catalogue import load_catalogue

Stallwatch = Callable[..., Result]

PAGE = """\
---
id: moon-is-full
title: The moon is full
title_zh: 满月
family: house
role: cause
harm: fatal
status: stable
since: 0.1.0
patterns:
  - 'the moon is (?P<shape>\\w+)'
---

## What happened

The moon was full.

## Why

It is so once a month.

## Fix

1. Wait.

## When it is harmless

Never.

## 中文

### 发生了什么

满月。

### 原因

每月一次。

### 处理

1. 等一等。

```log fires
ValueError: the moon is full
```

```log quiet
the sun shines
```
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    page = tmp_path / "mine" / "house" / "moon-is-full.md"
    page.parent.mkdir(parents=True)
    page.write_text(PAGE, encoding="utf-8")
    return page


def test_list_names_every_rule(stallwatch: Stallwatch, mine: Path) -> None:
    result = stallwatch("rules", "list")
    assert result.exit_code == 0
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert {row[0] for row in rows} == set(load_catalogue().pages)
    assert all(len(row) == 6 for row in rows)
    with_mine = stallwatch("rules", "list", "--rules", "mine")
    assert "moon-is-full\thouse\tcause\tfatal\tstable\tThe moon is full\n" in with_mine.stdout


def test_list_in_chinese(stallwatch: Stallwatch, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLWATCH_UI_LANGUAGE", "zh")
    assert "满月" in stallwatch("rules", "list", "--rules", "mine").stdout


def test_show_prints_the_page(stallwatch: Stallwatch, mine: Path) -> None:
    assert stallwatch("rules", "show", "moon-is-full", "--rules", "mine").stdout == PAGE


def test_show_puts_fragments_into_the_patterns(stallwatch: Stallwatch, mine: Path) -> None:
    text = PAGE.replace("the moon is", "${file_not_found}?the moon is")
    mine.write_text(text, encoding="utf-8")
    shown = stallwatch("rules", "show", "moon-is-full", "--rules", "mine").stdout
    assert shown.startswith(text)
    _, _, added = shown.partition("## Patterns in full")
    assert "(?:FileNotFoundError: \\[Errno 2\\] No such file or directory: )?the moon is" in added


def test_check_reports_an_unknown_fragment(stallwatch: Stallwatch, mine: Path) -> None:
    mine.write_text(PAGE.replace("the moon is", "${retry_word}.{0,80}the moon is"), encoding="utf-8")
    result = stallwatch("rules", "check", "mine")
    assert result.exit_code == 2
    assert "moon-is-full.md:11: " in result.stderr
    assert "unknown fragment ${retry_word}; did you mean ${retry_words}?" in result.stderr


def test_check_reports_a_long_pattern(stallwatch: Stallwatch, mine: Path) -> None:
    mine.write_text(PAGE.replace("the moon is", "(?:it rains" + "|it pours" * 30 + "|the moon is)"))
    result = stallwatch("rules", "check", "mine")
    assert result.exit_code == 2
    assert "moon-is-full.md:11: the text of the pattern is longer than 200 characters" in result.stderr


def test_show_of_an_unknown_rule_suggests_one(stallwatch: Stallwatch) -> None:
    result = stallwatch("rules", "show", "cuda-omm")
    assert result.exit_code == 2
    assert "did you mean cuda-oom?" in result.stderr


def test_check_of_the_packaged_rules(stallwatch: Stallwatch) -> None:
    result = stallwatch("rules", "check")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{len(load_catalogue().pages)} pages, no problems\n"


@pytest.mark.parametrize("flags", [("--rules-pack", "other-frameworks"), ()])
def test_pack_is_named_by_a_flag_or_the_configuration(
    stallwatch: Stallwatch, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not flags:
        monkeypatch.setenv("STALLWATCH_RULES_PACKS", "other-frameworks")
    result = stallwatch("rules", "list", *flags)
    assert "jax-processes-lost" in result.stdout
    monkeypatch.delenv("STALLWATCH_RULES_PACKS", raising=False)
    assert "jax-processes-lost" not in stallwatch("rules", "list").stdout


def test_check_of_a_custom_folder_reports_problems(stallwatch: Stallwatch, mine: Path) -> None:
    assert stallwatch("rules", "check", "mine").stdout == "1 page, no problems\n"
    mine.write_text(PAGE.replace("the sun shines", "the moon is full"), encoding="utf-8")
    result = stallwatch("rules", "check", "mine")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith((f"stallwatch: {mine}:", "stallwatch: mine/house/moon-is-full.md:"))
    assert "fires on the 'log quiet' sample 1" in line
    assert result.stdout == "1 page, 1 problem\n"


def test_check_does_not_count_pages_of_a_folder_with_the_same_prefix(
    stallwatch: Stallwatch, mine: Path
) -> None:
    other = mine.parents[1].with_name(f"{mine.parents[1].name}-of-last-year") / "house/sun-is-full.md"
    other.parent.mkdir(parents=True)
    other.write_text(PAGE.replace("moon", "sun"), encoding="utf-8")
    result = stallwatch("rules", "check", "mine", "--rules", str(other.parents[1]))
    assert result.stdout == "1 page, no problems\n"


def test_check_names_the_line_of_a_malformed_page(stallwatch: Stallwatch, mine: Path) -> None:
    mine.write_text(PAGE.replace("role: cause", "rule: cause"), encoding="utf-8")
    result = stallwatch("rules", "check", "mine")
    assert result.exit_code == 2
    assert "moon-is-full.md:6:" in result.stderr


def test_check_of_a_missing_folder_is_an_error(stallwatch: Stallwatch) -> None:
    result = stallwatch("rules", "check", "nowhere")
    assert result.exit_code == 2
    assert "nowhere" in result.stderr


def test_rules_test_prints_matches_with_captures(stallwatch: Stallwatch, mine: Path, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("nothing\n[rank3]: ValueError: the moon is full\n")
    result = stallwatch("rules", "test", "x.log", "--rules", "mine")
    assert result.exit_code == 0
    assert "x.log:2: moon-is-full shape='full'\n" in result.stdout
    only = stallwatch("rules", "test", "--rule", "cuda-oom", "x.log", "--rules", "mine")
    assert (only.exit_code, only.stdout) == (1, "")
    piped = stallwatch("rules", "test", "--rules", "mine", stdin="the moon is new\n")
    assert piped.stdout == "-:1: moon-is-full shape='new'\n"


def test_rules_test_of_a_missing_file_is_an_error(stallwatch: Stallwatch) -> None:
    result = stallwatch("rules", "test", "none.log")
    assert result.exit_code == 2
    assert "none.log: cannot be read" in result.stderr


def test_rules_test_explains_a_rule_without_patterns(stallwatch: Stallwatch) -> None:
    result = stallwatch("rules", "test", "--rule", "silent-hang-no-error", stdin="x\n")
    assert result.exit_code == 1
    assert "inferred from an entire run" in result.stderr
