"""What the house promises about itself: images that build, one test command, links that lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import grimp
import pytest
import yaml

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]


def packaged(root: Path) -> list[str]:
    """What the wheel is built from."""
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    return [*wheel["packages"], *wheel["force-include"]]


def test_every_package_is_built_installed_and_checked(root: Path) -> None:
    tool = tomllib.loads((root / "pyproject.toml").read_text())["tool"]
    folders = {file.parent.relative_to(root) for file in root.glob("*/stallwatch_*/__init__.py")}
    folders.add(Path("stallwatch"))
    names, sources = {folder.name for folder in folders}, {str(folder.parent) for folder in folders}
    assert set(tool["hatch"]["build"]["targets"]["wheel"]["packages"]) == set(map(str, folders))
    assert set(tool["hatch"]["build"]["dev-mode-dirs"]) == set(tool["ruff"]["src"]) == sources
    assert set(tool["mypy"]["packages"]) == set(tool["importlinter"]["root_packages"]) == names
    checked = re.search(r"^DIRS := (.+)$", (root / "Makefile").read_text(), flags=re.MULTILINE)
    assert checked is not None and {folder.parts[0] for folder in folders} <= set(checked[1].split())


@pytest.mark.parametrize("dockerfile", ["exporter/Dockerfile", "dashboard/Dockerfile"])
def test_image_copies_all_sources_of_the_wheel(root: Path, dockerfile: str) -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (root / dockerfile).read_text(), flags=re.MULTILINE)
    sources = {word for line in copied for word in line.split()}
    assert set(packaged(root)) <= sources


def test_ci_runs_the_commands_of_the_readme(root: Path) -> None:
    commands = [line for line in (root / ".ci/run").read_text().splitlines() if line.startswith("make ")]
    readme = (root / "README.md").read_text()
    assert commands == ["make lint", "make docs", "make test"]
    assert all(command in readme for command in commands)


def test_only_the_quick_command_excludes_tests(root: Path) -> None:
    recipes = dict(re.findall(r"^([\w-]+): .*\n\t(.+)$", (root / "Makefile").read_text(), flags=re.MULTILINE))
    assert " -m 'not slow and" in recipes["test-quick"]
    assert not re.search(r"not |--ignore|--deselect|-k ", recipes["test"])
    options = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    assert "-m " not in options and "--ignore" not in options
    slow = re.search(r"^SLOW = \((.+?)^\)", (root / "tests/conftest.py").read_text(), flags=re.M | re.S)
    assert slow is not None
    names = re.findall(r'"(.+)"', slow[1])
    gone = [name for name in names if not (root / "tests" / name.partition("::")[0]).exists()]
    assert names and gone == []


def test_compose_file_mounts_existing_files(root: Path) -> None:
    services = yaml.safe_load((root / "docker-compose.yml").read_text())["services"]
    mounts = [mount.split(":")[0] for service in services.values() for mount in service.get("volumes", [])]
    assert [mount for mount in mounts if mount.startswith("./") and not (root / mount).exists()] == []


def pages(root: Path) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=root, capture_output=True, text=True, check=True)
    return [root / name for name in listed.stdout.splitlines() if "stallwatch_rules/" not in name]


def test_links_between_pages_are_valid(root: Path) -> None:
    broken = [
        f"{page.relative_to(root)}: {target}"
        for page in pages(root)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if not target.startswith(("http:", "https:", "mailto:")) and not (page.parent / target).exists()
    ]
    assert broken == []


def test_python_files_are_at_most_600_lines(root: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.splitlines() if not name.startswith("tests/")]
    lengths = {name: len((root / name).read_text().splitlines()) for name in names}
    assert {name: lines for name, lines in lengths.items() if lines > 600} == {}


def test_test_modules_do_not_import_each_other(root: Path) -> None:
    """Several folders have test modules of one name, so the import may find another one; use a helper."""
    modules = list(root.glob("tests/**/*.py"))
    tests = "|".join({path.stem for path in modules if path.stem.startswith("test_")})
    importing = re.compile(rf"^(?:from|import) (?:{tests})\b", re.M)
    assert [path for path in modules if importing.search(path.read_text(encoding="utf-8"))] == []


def test_imports_have_no_cycles(root: Path) -> None:
    tool = tomllib.loads((root / "pyproject.toml").read_text())["tool"]
    packages = tool["importlinter"]["root_packages"]
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while done := {module for module, imported in imports.items() if not imported & imports.keys()}:
        imports = {module: imported for module, imported in imports.items() if module not in done}
    # What is left only imports modules of a cycle: drop those that none of them imports.
    while imports and (unused := imports.keys() - set().union(*imports.values())):
        imports = {module: imported for module, imported in imports.items() if module not in unused}
    assert sorted(imports) == []


def test_extras_do_not_repeat_dependencies(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]

    def names(wanted: list[str]) -> set[str]:
        return {re.split(r"[\s\[<>=!~;]", item, maxsplit=1)[0].lower() for item in wanted}

    needed = names(project["dependencies"])
    assert {"numpy", "hyperscan", "isal"} <= needed
    for extra, wanted in project["optional-dependencies"].items():
        assert not needed & names(wanted), extra
