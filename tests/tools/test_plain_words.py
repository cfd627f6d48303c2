"""Words with a private sense are found where they are written, and the usual senses pass."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import plain_words
import pytest
from click.testing import CliRunner

PYTHON = '''\
"""The book tells its readers.

It stood
open; ``told`` is code.
"""
import told_elsewhere

told_by = 1  # said so
# a line that
# said nothing


class SaidBy:
    """A word for `said`."""

    heard: int

    def show(self, asked): return told_elsewhere.tell(asked, help="Mend it.", text="mend")


all(told for told in map(lambda said: said, ()))
'''
PAGE = """\
---
title: What it told
family: told
---

It was
told [so](told.md), `told`.

```text
told
```

* and told

## 中文

told
"""
#: Sentences in which each word has its usual sense.
USUAL = """\
A label of the metric names the host. The threshold has a floor of 30 s.
Of a notebook it reads what the cells printed.
Two causes look alike, and nothing tells them apart. The log alone cannot tell.
Choose one of the two ways; an answer of this kind is rare.
A stand-in replaces the server, and 137 stands for SIGKILL. One host stands out.
A signal asked the run to end. The trainer asks for eight GPUs.
A note says so. A line says that no rank has a probe.
Ports up to 65535 are allowed; a clock is up to a day ahead. The time is up.
The agent was last heard from at noon.
A file system maps root to nobody.
It is not only for Slurm, but for every scheduler. The two files are all the same.
Tests on a machine where there is no GPU are skipped.
There are so many lines that the log is searched in parts, so many threads help.
The spare stands by.
Each file names its sources. If only a configuration file names a folder, it reads a path that the file names.
The GPUs are at 100% utilization. No metric shows the utilization, temperature, and power of GPUs.
A dummy loss sums the parameters.
"""
PRIVATE = [
    ("Ranks are told of it.", "reported"),
    ("The log tells, and the run continues.", "report"),
    ("What the ranks say is read.", "reports"),
    ("The ranks are asked twice.", "queried"),
    ("If the run stands, look at it.", "stalls"),
    ("Nobody looks at them.", "the actor"),
    ("The run goes on.", "continues"),
    ("A run that is already up is watched.", "is running"),
    ("It ends without a word.", "without a message"),
    ("It reads what is there.", "exists"),
    ("Waits for\never.", "forever"),
    ("All but for one.", "except for"),
    ("A list; empty where there is none.", "if there is"),
    ("It was mended.", "fix"),
    ("A process of so many threads.", "this many"),
    ("The host names differ.", "hostname"),
    ("The rank comes from the file name.", "filename"),
    ("The file names suggest 3 jobs.", "filename"),
    ("Run the branch on dummy input.", "placeholder"),
    ("Press Ctrl-D.", "Control+C"),
    ("It utilizes both cores.", "use"),
    ("Clone the repo.", "repository"),
]


def found(name: str, text: str) -> list[tuple[str, int, str]]:
    words = plain_words.load()
    return [
        (hit.found, hit.line, part.kind)
        for part in plain_words.texts(name, text)
        for hit in plain_words.hits(name, part, [word for word in words if part.kind in word.kinds])
    ]


def test_names_docstrings_comments_and_help_are_read() -> None:
    hits = found("told.py", PYTHON)
    assert sorted(hit[:2] for hit in hits if hit[2] == "names") == [
        ("asked", 18),
        ("heard", 16),
        ("said", 13),
        ("said by", 13),
        ("told", 1),
        ("told", 8),
    ]
    assert sorted(hit[:2] for hit in hits if hit[2] == "prose") == [
        ("Mend", 18),
        ("said", 8),
        ("said", 10),
        ("stood", 3),
        ("tells", 1),
    ]


def test_pages_and_messages_are_read_without_code_and_links() -> None:
    assert [hit[:2] for hit in found("page.md", PAGE)] == [("told", 2), ("told", 7), ("told", 13)]
    assert found("en/a.json", '{\n  "told": "{told} was told"\n}\n') == [("told", 2, "prose")]


@pytest.mark.parametrize("sentence", USUAL.splitlines())
def test_usual_sense_of_a_word_passes(sentence: str) -> None:
    assert found("page.md", sentence) == []


@pytest.mark.parametrize(("sentence", "instead"), PRIVATE)
def test_private_sense_is_found_with_a_replacement(sentence: str, instead: str) -> None:
    (text,) = plain_words.texts("page.md", sentence)
    hits = list(plain_words.hits("page.md", text, plain_words.load()))
    assert any(instead in hit.word.instead for hit in hits), hits


def test_places_of_words_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text("Fine.\n\nIt was told.\n\nIt was mended.\n")
    (tmp_path / "list.toml").write_text(
        '[[word]]\nword = "told"\ninstead = "reported"\n'
        '[[word]]\nword = "mended"\ninstead = "fixed"\nin = ["names"]\n'
    )
    monkeypatch.setattr(plain_words, "ROOT", tmp_path)
    monkeypatch.setattr(plain_words, "LIST", tmp_path / "list.toml")
    monkeypatch.setattr(plain_words, "files", lambda: ["page.md"])
    run = CliRunner()
    result = run.invoke(plain_words.main, [])
    assert (result.exit_code, result.stdout) == (
        1,
        "page.md:3: told: write reported: …It was told.…\n",
    )
    assert run.invoke(plain_words.main, ["--word", "told"]).exit_code == 1
    assert run.invoke(plain_words.main, ["--word", "mended"]).exit_code == 0
    assert run.invoke(plain_words.main, ["docs/"]).exit_code == 0


def test_only_files_of_the_product_are_checked(root: Path) -> None:
    names = plain_words.files()
    assert {"README.md", "docs/cli.md", "stallwatch/cli/run.py"} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "CHANGELOG", "docs/decisions"))]


def test_sample_contains_every_group_and_depends_on_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    some = ("logs/", "docs/", "rules/stallwatch_rules/locale/", "rules/stallwatch_rules/catalogue/data/")
    names = [name for name in plain_words.files() if name.startswith(some)]
    monkeypatch.setattr(plain_words, "files", lambda: names)
    drawn = list(plain_words.sample(7))
    assert Counter(group for group, _, _ in drawn) == plain_words.DRAWN
    assert drawn == list(plain_words.sample(7)) != list(plain_words.sample(8))
    assert all(any("一" <= character <= "鿿" for character in text) for _, _, text in drawn[-40:])
