"""The documentation site builds without a warning, has the whole reference, and loads nothing foreign."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import docs_site
import pytest

import stallwatch
from stallwatch.cli import cli
from stallwatch.config.keys import KEYS
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def catalogue(cache_folder: Path) -> Catalogue:
    return load_catalogue(cache=cache_folder)


def text_of(site: Path, page: str) -> str:
    """The page's words without its menus."""
    article = (site / page / "index.html").read_text(encoding="utf-8").partition("<article")[2]
    return html.unescape(re.sub(r"<[^>]+>", "", article.partition("</article>")[0]))


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(("stallwatch", *words)), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*words, name))


def test_each_command_and_flag_is_in_the_reference(site: Path) -> None:
    text = text_of(site, "cli")
    missing = []
    for name, command in commands(cli):
        if name not in text:
            missing.append(name)
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                missing += [f"{name} {flag}" for flag in parameter.opts if flag not in text]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "command"), [pair for pair in commands(cli) if not isinstance(pair[1], click.Group)]
)
def test_option_table_of_a_command_lists_each_flag_once(name: str, command: click.Command) -> None:
    table = docs_site.options_of(name.split()[1:])
    flags = re.findall(r"(?<![\w-])--?[a-z][\w-]*", " ".join(re.findall(r"^\| `(.*?)` \|", table, re.M)))
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    shown = [option for option in options if not option.hidden]
    assert sorted(flags) == sorted(
        flag for option in shown for flag in (*option.opts, *option.secondary_opts)
    )


def test_python_page_lists_each_name_once(root: Path) -> None:
    listed = re.findall(r"^::: (\S+)$", (root / "docs/python.md").read_text(), re.MULTILINE)
    public = {f"stallwatch.{name}" for name in stallwatch.__all__} - {"stallwatch.__version__"}
    assert sorted(listed) == sorted(public | {"stallwatch.integrations.loop.TrainingRun"})


def test_each_key_and_python_name_is_in_the_reference(site: Path) -> None:
    configuration, python = text_of(site, "configuration"), text_of(site, "python")
    assert [key.full_name for key in KEYS if key.name not in configuration] == []
    names = set(stallwatch.__all__) - {"__version__"}
    assert [name for name in names if f"stallwatch.{name}" not in python] == []


def test_each_metric_is_in_the_reference(site: Path, root: Path) -> None:
    listed = re.findall(r"^\| `(stallwatch_\w+)`", (root / "docs/metrics.md").read_text(), re.MULTILINE)
    text = text_of(site, "metrics")
    assert len(listed) > 30 and [name for name in listed if name not in text] == []


def test_each_rule_has_a_page_in_both_languages(site: Path, catalogue: Catalogue) -> None:
    for page in catalogue.pages.values():
        assert page.title in text_of(site, f"catalogue/{page.id}")
        assert page.title_zh in text_of(site, f"zh/catalogue/{page.id}")
    lines = catalogue.pages["cuda-oom"].fires[0].strip().splitlines()
    assert lines[0] in text_of(site, "catalogue/cuda-oom")


def test_chinese_sentence_has_no_space_at_a_line_break(site: Path, catalogue: Catalogue) -> None:
    page = catalogue.pages["zero3-numel-zero"]
    source = Path(page.path).read_text(encoding="utf-8").partition("## 中文")[2]
    assert re.search("[一-鿿，。]\n *[一-鿿]", source)
    for name in ("zh", f"zh/catalogue/{page.id}"):
        _, _, article = (site / name / "index.html").read_text(encoding="utf-8").partition("<article")
        prose = re.sub(r"<pre.*?</pre>", "", article.partition("</article>")[0], flags=re.DOTALL)
        assert not re.search("[一-鿿，。]\\s+[一-鿿]", prose)


def test_rule_is_found_by_its_patterns(site: Path, catalogue: Catalogue) -> None:
    listed = {rule["id"]: rule for rule in json.loads((site / "catalogue/patterns.json").read_text())}
    assert set(catalogue.pages) - set(listed) == {page.id for page in catalogue.pages.values() if page.judged}
    assert listed["nccl-duplicate-gpu"]["patterns"] == catalogue.pages["nccl-duplicate-gpu"].patterns


@pytest.mark.browser
def test_pasted_message_leads_to_its_rule_in_the_selected_language(site: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, ThreadPoolExecutor(1) as apart:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        # In its own thread: Playwright allows one start per thread, and other tests may have a browser open.
        apart.submit(_find_pasted, chromium, f"http://127.0.0.1:{server.server_port}").result()
        server.shutdown()


def _find_pasted(chromium: str, site: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        for folder, title in (
            ("catalogue", "Two ranks use the same GPU"),
            ("zh/catalogue", "两个 rank 使用了同一块 GPU"),
        ):
            page.goto(f"{site}/{folder}/")
            page.fill(
                "#rules-find[data-ready]",
                "[rank3]: Duplicate GPU detected : rank 3 and rank 0 both on CUDA device f000",
            )
            page.click(f"#rules-found a:text-is('{title}')")
            page.wait_for_url(f"**/{folder}/nccl-duplicate-gpu/")
        browser.close()


def test_pages_load_nothing_external_and_link_to_no_placeholder(site: Path) -> None:
    loaded = r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']?(https?://[^"'\s>]+)"""
    placeholder = r"""href=["']?(https://github\.com/stallwatch[^"'\s>]*)"""
    pages = list(site.rglob("*.html"))
    found = {
        address
        for page in pages
        for address in re.findall(f"{loaded}|{placeholder}", page.read_text(encoding="utf-8"))
    }
    assert len(pages) > 500
    reporting = "https://github.com/stallwatch/stallwatch/security/advisories/new"  # SECURITY.md
    assert {"".join(address) for address in found} - {reporting} == set()
