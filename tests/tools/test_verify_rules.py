"""``tools/verify_rules.py``: the strings of a package's source, and the report about them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from verify_rules import verify
from wordings.files import SourceError, file_of
from wordings.packages import installed
from wordings.phrases import Phrases
from wordings.search import Template
from wordings.strings import binary_strings, c_strings, python_strings, strings_in

Verify = Callable[..., Result]


@pytest.fixture
def verifying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Call the command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(verify, list(arguments))


def test_python_strings_are_joined_with_gaps() -> None:
    text = textwrap.dedent(
        """
        raise ValueError("one"
                         " two")
        log(f"step {step}: " f"loss {loss:.2f}")
        log("left " + name + " right")
        log("%s of %d" % (a, b))
        model.gather_all_weights()
        """
    )
    found = [
        (python_string.text.replace("\0", "_"), python_string.line) for python_string in python_strings(text)
    ]
    assert ("one two", 2) in found
    assert ("step _: loss _", 4) in found
    assert ("left _ right", 5) in found
    assert ("%s of %d", 6) in found
    assert ("gather_all_weights", 7) in found
    assert list(python_strings("def broken(")) == []


def test_docstrings_are_ignored_and_exception_classes_are_names() -> None:
    text = textwrap.dedent(
        """
        '''The module says: out of room.'''
        class CrateError(Exception):
            '''Says that it is out of room.'''
        def lift():
            '''Lifts.'''
            f"nothing {1}"
            raise CrateError("no crane")
        """
    )
    assert list(python_strings(text)) == [Template("CrateError", 3, name=True), Template("no crane", 8)]


def test_c_strings_are_joined_with_gaps() -> None:
    text = 'int x;\nTORCH_CHECK(ok, "Function ", name,\n  " returned \\"it\\" "\n  "twice");\nf("other");\n'
    found = [(c_string.text.replace("\0", "_"), c_string.line) for c_string in c_strings(text)]
    assert found == [('Function _ returned "it" twice', 2), ("other", 5)]


def test_strings_of_compiled_files_are_found_by_a_phrase(tmp_path: Path) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(b"\x7fELF\0the Crane broke\0nothing\0the crane\0the Crane broke\0")
    crane = Phrases([("the", "crane")])
    assert [binary_string.text for binary_string in binary_strings(file_of(file), crane)] == [
        "the Crane broke",
        "the crane",
    ]
    assert list(binary_strings(file_of(file), Phrases([("boat",)]))) == []
    (tmp_path / "empty.so").write_bytes(b"")
    assert list(strings_in(file_of(tmp_path / "empty.so"), crane, lambda _: True)) == []


PAGE = """\
---
id: {rule}
title: The crane
title_zh: 吊车
family: house
role: cause
harm: fatal
status: stable
since: "0.1"
patterns:
  - '{text}'
emitted_by:
  - package: cargo
---

## What happened

It broke.

## Why

It was old.

## Fix

1. Mend it.

## 中文

### 发生了什么

坏了。

### 原因

旧了。

### 处理

1. 修理。

```log fires
{text}
```

```log quiet
the crane stands still
```
"""


@pytest.fixture
def cargo(tmp_path: Path) -> Path:
    for rule, text in (
        ("crane-broke", "the crane broke in two"),
        ("crane-sank", "the crane sank into the sea"),
    ):
        page = tmp_path / "mine" / "house" / f"{rule}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(PAGE.format(rule=rule, text=text), encoding="utf-8")
    source = tmp_path / "cargo"
    source.mkdir()
    (source / "crane.py").write_text('def f():\n    raise OSError("the crane broke " "in two")\n')
    return source


def test_found_and_missing(verifying: Verify, cargo: Path) -> None:
    command = ("--package", "cargo", "--path", "cargo", "--rules", "mine")
    result = verifying(*command, "--json")
    assert result.exit_code == 1
    rules = json.loads(result.stdout)["rules"]
    assert {rule["rule"]: (rule["state"], rule["file"], rule["line"]) for rule in rules} == {
        "crane-broke": ("found", "crane.py", 2),
        "crane-sank": ("missing", "", 0),
    }
    (cargo / "sea.py").write_text('print("the crane sank into the sea")\n')
    found = verifying(*command)
    assert found.exit_code == 0
    assert "crane-broke  found  crane.py:2" in found.stdout
    assert "cargo (version unknown): 2 found, 0 missing, 0 skipped" in found.stdout


def test_file_that_holds_the_whole_text_is_read_first(
    verifying: Verify, cargo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nothing is missing, files with fewer pieces need no parsing."""
    (cargo / "crane.py").write_text('raise OSError(f"the crane {what} in two, and sank into the sea")\n')
    (cargo / "quay.py").write_text('print("the crane broke in two")\nprint("the crane sank into the sea")\n')
    parsed: list[str] = []
    monkeypatch.setattr(
        "wordings.strings.python_strings", lambda text: parsed.append(text) or python_strings(text)
    )
    result = verifying("--package", "cargo", "--path", "cargo", "--rules", "mine", "--json")
    found = [(load["rule"], load["file"], load["line"]) for load in json.loads(result.stdout)["rules"]]
    assert sorted(found) == [("crane-broke", "quay.py", 1), ("crane-sank", "quay.py", 2)]
    assert parsed == [(cargo / "quay.py").read_text()]


def test_installed_package_is_found_without_importing_it(verifying: Verify) -> None:
    assert installed("click").version
    assert any(file.base == "core.py" for file in installed("click").files)
    with pytest.raises(SourceError, match="not installed here"):
        installed("no-such-package-at-all")
    result = verifying("--package", "no-such-package-at-all")
    assert result.exit_code == 2
    assert "--download" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--path", ".", "--download"), "exclude each other"),
        (("--version", "1"), "--version needs --download"),
    ],
)
def test_options_that_do_not_go_together(
    verifying: Verify, arguments: tuple[str, ...], expected: str
) -> None:
    result = verifying("--package", "cargo", *arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
