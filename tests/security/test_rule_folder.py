"""Another account adds rules to a folder that the user's configuration names."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch.config.loading import Config, Setting, load
from stallwatch.config.trust import distrust_pages
from stallwatch_rules.pages.catalogue import _page_files

Eves = Callable[..., Path]
Attacked = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity"
SILENCES = """\
---
extends: cuda-oom
unless: ['CUDA out of memory']
---
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A folder of rules that the configuration beside it names, with a page that hides a failure."""
    folder = tmp_path / "rules" / "memory"
    folder.mkdir(parents=True, mode=0o755)
    (folder / "cuda-oom.md").write_text(SILENCES)
    (folder / "cuda-oom.md").chmod(0o644)
    (tmp_path / "stallwatch.toml").write_text("[rules]\ndirs = ['rules']\n")
    return folder.parent


def refused(rules: Path, because: str) -> Config:
    """None of the folder's pages is read, and the folder is named with the reason and the remedy."""
    config = load(environ={}, cwd=rules.parent)
    assert config["rules.dirs"] == () and config.file == rules.parent / "stallwatch.toml"
    (ignored,) = config.ignored
    assert ignored.file == str(rules) and because in ignored.message and f"--rules {rules}" in str(ignored)
    return config


def test_rule_folder_of_the_user_is_read(rules: Path) -> None:
    config = load(environ={}, cwd=rules.parent)
    assert (config["rules.dirs"], config.ignored, config.problems) == ((rules,), [], [])


def test_rule_page_of_another_account_is_ignored(attacked: Attacked, eves: Eves, rules: Path) -> None:
    """The failure is found anyway, and the ignored folder is named."""
    (rules.parent / "a.log").write_text(f"step 1 loss 2.0\n{OOM}\n")
    eves(rules / "memory" / "cuda-oom.md")
    done = attacked(rules.parent, "diagnose", "a.log", "--json")
    assert json.loads(done.stdout)["primary"]["rule"] == "cuda-oom"
    assert f"{rules}: ignored, because of {rules}/memory/cuda-oom.md: it belongs to another" in done.stderr
    shown = attacked(rules.parent, "config", "show").stdout
    assert f"rules: {rules} (ignored, because of" in shown


def test_rule_folder_of_another_account_is_ignored(eves: Eves, rules: Path) -> None:
    """A shared folder of rules belongs to its owner, regardless of the file that names it."""
    eves(rules)
    refused(rules, "it belongs to another account")


@pytest.mark.parametrize("where", ["memory/cuda-oom.md", "memory", "."])
def test_page_or_folder_that_every_account_can_write_is_ignored(rules: Path, where: str) -> None:
    """A page can be changed, or added, between two starts."""
    (rules / where).chmod(0o777)
    refused(rules, "every account can write to it")


def test_folder_that_others_can_replace_is_ignored(rules: Path) -> None:
    """An account that can rename the folder can put another one in its place."""
    rules.parent.chmod(0o777)
    config = load(rules.parent / "stallwatch.toml", environ={})
    assert config["rules.dirs"] == () and "every account can write to its folder" in config.ignored[0].message


def test_page_that_links_to_a_foreign_file_is_ignored(eves: Eves, rules: Path, tmp_path: Path) -> None:
    """What a page's link leads to counts, not the link."""
    page = tmp_path / "page.md"
    page.write_text(SILENCES)
    (rules / "linked.md").symlink_to(eves(page))
    refused(rules, f"of {rules}/linked.md: it belongs to another account")


def test_folder_that_links_to_a_foreign_folder_is_ignored(eves: Eves, rules: Path, tmp_path: Path) -> None:
    """Folders in the folder are followed like files."""
    (tmp_path / "other").mkdir()
    (rules / "linked").symlink_to(eves(tmp_path / "other"))
    refused(rules, f"of {rules}/linked: it belongs to another account")


@pytest.mark.parametrize("lost", ["a.md", "memory/a.md", "memory/a"])
def test_broken_symlink_does_not_prevent_checks_of_other_pages(rules: Path, lost: str) -> None:
    """An unverifiable page is no reason to read the others, nor to wait for another page."""
    (rules / "memory" / "cuda-oom.md").chmod(0o666)
    (rules / lost).symlink_to(rules / "gone")
    refused(rules, "")
    (rules / "memory" / "cuda-oom.md").chmod(0o644)
    if lost.endswith(".md"):
        refused(rules, f"because of {rules / lost}: it cannot be checked (No such file or directory)")


def test_circular_symlinks_are_not_followed_forever(rules: Path) -> None:
    """Each folder is checked and read once, however many links lead to it."""
    for name in ("one", "two", "three"):
        (rules / name).symlink_to(".")
    (rules / "memory" / "back").symlink_to("..")
    assert distrust_pages(rules) is None
    found = list(_page_files(rules))
    assert found and len({file.resolve() for file in found if isinstance(file, Path)}) == len(found)


def test_rule_folder_of_a_trusted_configuration_is_used(eves: Eves, rules: Path) -> None:
    """Trust in a file, which counts until it changes, is no trust in pages that may change at any time."""
    from stallwatch.config.trust import trust

    file = rules.parent / "stallwatch.toml"
    eves(file, rules)
    trust(file)
    refused(rules, "it belongs to another account")


def test_folder_named_by_the_user_is_read_regardless_of_its_writers(eves: Eves, rules: Path) -> None:
    eves(rules)
    flag = {"rules.dirs": Setting((rules,), "--rules")}
    assert load(flags=flag, environ={}, cwd=rules.parent)["rules.dirs"] == (rules,)
    config = load(environ={"STALLWATCH_RULES_DIRS": str(rules)}, cwd=rules.parent)
    assert (config["rules.dirs"], config.ignored) == ((rules,), [])


def test_missing_folder_is_reported(attacked: Attacked, rules: Path) -> None:
    (rules.parent / "stallwatch.toml").write_text("[rules]\ndirs = ['gone']\n")
    (rules.parent / "a.log").write_text("step 1 loss 2.0\n")
    assert "no such folder of rule pages" in attacked(rules.parent, "diagnose", "a.log").stderr
