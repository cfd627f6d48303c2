"""Rule pages are read completely, and each problem is reported with its line and a remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stallwatch_rules.locale import render
from stallwatch_rules.pages.fixes import fixes_for, parse_fix
from stallwatch_rules.pages.page import RulePage, parse_page
from stallwatch_rules.pages.page_body import PageError

PATH = "catalogue/memory/no-room.md"
PageText = Callable[..., str]


def problems(text: str, path: str = PATH) -> list[PageError]:
    with pytest.raises(PageError) as caught:
        parse_page(text, path)
    return caught.value.every()


def line_with(text: str, needle: str) -> int:
    return next(number for number, line in enumerate(text.split("\n"), 1) if needle in line)


def test_whole_content_of_a_page_is_read(page_text: PageText) -> None:
    page = parse_page(
        page_text(
            requires=["using the big model"],
            unless=["a joke"],
            explains=["other-rule"],
            emitted_by=[{"package": "torch", "versions": ">=2", "ranks": "all"}],
            probe="none",
            fires=("out of room", "first\n  out of room\nthird"),
        ),
        PATH,
    )
    assert (page.id, page.role, page.harm, page.status) == ("no-room", "cause", "fatal", "stable")
    assert page.requires == ["using the big model"]
    assert page.emitted_by[0].package == "torch"
    assert page.emitted_by[0].level == ""
    assert page.probe is None
    assert not page.judged
    assert page.sections.what == "The allocator found no room."
    assert page.sections.zh_what == "显存不够，训练停止。"
    assert page.sections.harmless == ""
    assert page.sections.fixes[1] == "Ask for less:\n```bash\nexport SIZE=1\n  # kept as it is\n```"
    assert page.fires == ["out of room", "first\n  out of room\nthird"]


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        ("显存不够，\n`torch` 报错。", "显存不够，`torch` 报错。"),
        ("显存\n不够。", "显存不够。"),
        ("用 GPU\n显存。", "用 GPU 显存。"),
    ],
)
def test_lines_of_a_chinese_paragraph_are_joined_without_stray_spaces(
    page_text: PageText, lines: str, joined: str
) -> None:
    text = page_text().replace("显存不够，\n训练停止。", lines)
    assert parse_page(text, PATH).sections.zh_what == joined


def test_samples_have_line_numbers(page_text: PageText) -> None:
    text = page_text()
    page = parse_page(text, PATH)
    assert page.fires_at == [line_with(text, "```log fires")]
    assert page.quiet_at == [line_with(text, "```log quiet")]


def test_windows_line_ends_and_byte_order_mark_are_accepted(page_text: PageText) -> None:
    text = page_text(fires=("a\nout of room",))
    assert parse_page("\ufeff" + text.replace("\n", "\r\n"), PATH) == parse_page(text, PATH)


@pytest.mark.parametrize(
    ("front", "needle", "message"),
    [
        ({"role": "villain"}, "role:", "role: Invalid enum value 'villain'"),
        ({"harm": "bad"}, "harm:", "harm: Invalid enum value 'bad'"),
        ({"status": "new"}, "status:", "status: Invalid enum value 'new'"),
        ({"tags": ["odd"]}, "tags:", "tags.0: Invalid enum value 'odd'"),
        ({"since": 0.1}, "since:", "since: Expected `str`, got `float`"),
        ({"sinse": "0.1"}, "sinse:", "unknown key 'sinse'"),
        ({"emitted_by": [{"package": "a", "pack": 1}]}, "emitted_by:", "unknown key 'pack' in emitted_by.0"),
        ({"emitted_by": [{"module": "x"}]}, "emitted_by:", "package is missing in emitted_by.0"),
        ({"id": "No_Room"}, "id:", "id 'No_Room' is not kebab-case"),
        ({"id": "other"}, "id:", "id 'other' is not the file's name without .md ('no-room')"),
        ({"family": "other"}, "family:", "family 'other' is not the folder's name ('memory')"),
        ({"title_zh": "  "}, "title_zh:", "title_zh is empty"),
        ({"patterns": ["fine", "(open"]}, "patterns:", "patterns[1] '(open': not a valid expression"),
        ({"patterns": [], "unless": ["x"]}, "patterns:", "unless needs patterns"),
        ({"when": ["joined < expected"]}, "when:", "when[0] 'joined < expected' is not a comparison"),
        ({"raised_in": [{"functions": ["f"]}]}, "raised_in:", "an entry of raised_in needs a file"),
        ({"raised_in": [{"exceptions": ["x.Y", "Z"]}]}, "raised_in:", "an entry of raised_in needs a file"),
        ({"raised_in": [{"file": "a/b.py"}]}, "raised_in:", "an entry of raised_in cannot consist of"),
        (
            {"raised_in": [{"file": "a/b.py", "message": "(x"}]},
            "raised_in:",
            "message '(x': not a valid expression",
        ),
        ({"said_by": [{"words": "x"}]}, "said_by:", "said_by needs calls or never"),
        ({"said_by": [{"words": "(x", "calls": "y"}]}, "said_by:", "words '(x': not a valid expression"),
        ({"raised_in": [{"file": "a/b.py", "function": "f"}]}, "raised_in:", "unknown key 'function' in"),
    ],
)  # fmt: skip
def test_fault_in_the_front_matter_is_reported_with_its_line(
    page_text: PageText, front: dict[str, object], needle: str, message: str
) -> None:
    text = page_text(**front)
    (problem,) = problems(text)
    assert problem.path == PATH
    assert problem.message.startswith(message)
    assert problem.line == line_with(text, needle)
    assert problem.remedy
    assert str(problem) == f"{PATH}:{problem.line}: {problem.message}; {problem.remedy}"


@pytest.mark.parametrize(
    "key", ["id", "title", "title_zh", "family", "role", "harm", "status", "since", "patterns"]
)
def test_missing_required_key_is_reported(page_text: PageText, key: str) -> None:
    assert f"{key} is missing" in [problem.message for problem in problems(page_text(**{key: None}))]


def test_several_faults_are_reported_in_line_order(page_text: PageText) -> None:
    text = page_text(role="villain", harm="bad", color="red").replace("## Why", "## Reasons")
    found = problems(text)
    assert [problem.line for problem in found] == sorted(problem.line for problem in found)
    given = " | ".join(problem.message for problem in found)
    for expected in ("role", "harm", "color", "unknown heading '## Reasons'", "'## Why' is missing"):
        assert expected in given


@pytest.mark.parametrize(
    ("old", "new", "line_of", "message"),
    [
        ("role: ", "role: : ", "role:", "not valid YAML"),
        ("---\nid", "id", "id:", "no front matter"),
        ("role:", "id: x\nrole:", "id: x", "the key id occurs twice"),
    ],
)
def test_invalid_front_matter_is_reported(
    page_text: PageText, old: str, new: str, line_of: str, message: str
) -> None:
    text = page_text().replace(old, new, 1)
    (problem,) = problems(text)
    assert message in problem.message
    assert problem.line == line_with(text, line_of)


@pytest.mark.parametrize(
    "text", ["", "---", "---\n---", "---\n- a\n---\n", "---\n3\n---\n", "# Title\n", "---\n&a [*a]\n---\n"]
)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    assert problems(text)


@pytest.mark.parametrize(
    ("heading", "section"),
    [
        ("## What happened", "## What happened"),
        ("## Why", "## Why"),
        ("## Fix", "## Fix"),
        ("### 发生了什么", "### 发生了什么"),
        ("### 原因", "### 原因"),
        ("### 处理", "### 处理"),
    ],
)
def test_missing_required_section_is_reported(page_text: PageText, heading: str, section: str) -> None:
    found = problems(page_text().replace(heading + "\n", "\n"))
    assert f"the section '{section}' is missing" in [problem.message for problem in found]


@pytest.mark.parametrize(
    ("old", "new", "line_of", "message"),
    [
        ("1. {deep", "Do this: {deep", "Do this", "Fix must be a numbered list"),
        ("{deepspeed<0.15.4} Up", "{deepspeed 0.15.4} Up", "{deepspeed 0", "is neither a condition"),
        ("```log quiet", "```log silent", "log silent", "unknown block 'log silent'"),
        ("out of room\n```\n", "out of room\n", "```log fires", "the fenced block is not closed"),
        ("Too much was asked for.\n", "", "## Why", "the section is empty"),
        ("## Why\n", "## Fix\n1. x\n## Why\n", "## Fix", "occurs twice"),
    ],
)
def test_fault_in_the_body_is_reported_with_its_line(
    page_text: PageText, old: str, new: str, line_of: str, message: str
) -> None:
    text = page_text().replace(old, new, 1)
    assert text != page_text()
    problem = next(problem for problem in problems(text) if message in problem.message)
    lines = [number for number, line in enumerate(text.split("\n"), 1) if line_of in line]
    assert problem.line in lines


@pytest.mark.parametrize("kind", ["fires", "quiet"])
def test_page_needs_both_kinds_of_samples(page_text: PageText, kind: str) -> None:
    (problem,) = problems(page_text(**{kind: ()}))
    assert f"```log {kind}" in problem.remedy


@pytest.mark.parametrize(
    "pattern",
    [
        ".*out of room",
        "^.*out of room",
        "(?P<before>.*)out of room",
        "out of room.*",
        "out of room.+$",
        "x*",
        r"\Aout of room",
        r"out of room\z",
        "(?s)out of room",
        "(?m)^out of room",
        "out (?=of) room",
        r"(o)ut \1f room",
        "out of\nroom",
        "",
    ],
)
def test_expensive_pattern_is_refused(page_text: PageText, pattern: str) -> None:
    (problem,) = problems(page_text(patterns=[pattern]))
    assert problem.message.startswith("patterns[0]")


@pytest.mark.parametrize(
    "pattern",
    [
        "out of room",
        r"^out of (?P<what>\w+)",
        "(?i)OUT OF ROOM",
        r"out of (?P<rest>.+)$",
        r"out\.\*$",
        r"out \(?\d+\)? of room",
        "显存(?P<x>不足)",
    ],
)
def test_cheap_pattern_is_accepted(page_text: PageText, pattern: str) -> None:
    assert parse_page(page_text(patterns=[pattern]), PATH).patterns == [pattern]


class TestFixes:
    @pytest.fixture
    def page(self, page_text: PageText) -> RulePage:
        return parse_page(page_text(), PATH)

    @pytest.mark.parametrize("version", ["0.15.3", "0.15.3+abc", "0.15.3rc1"])
    def test_true_condition_is_taken_off(self, page: RulePage, version: str) -> None:
        assert render(fixes_for(page, {"deepspeed": version})[0]) == "Upgrade DeepSpeed."

    @pytest.mark.parametrize("version", ["0.15.4", "0.16", "1"])
    def test_false_one_takes_the_fix_out(self, page: RulePage, version: str) -> None:
        assert [render(fix)[:12] for fix in fixes_for(page, {"deepspeed": version})] == ["Ask for less"]

    @pytest.mark.parametrize(
        "environment", [{}, {"torch": "2.6.0"}, {"deepspeed": "unknown"}, {"deepspeed": ""}]
    )
    def test_undecidable_one_becomes_words(self, page: RulePage, environment: dict[str, str]) -> None:
        assert render(fixes_for(page, environment)[0]) == "With deepspeed<0.15.4: Upgrade DeepSpeed."
        assert render(fixes_for(page, environment)[0], "zh") == "deepspeed<0.15.4 时：升级 DeepSpeed。"

    def test_names_of_packages_are_compared_as_pip_does(self) -> None:
        fix = parse_fix("{Flash_Attn>=2.5,<3} Pin it.")
        (condition,) = fix.conditions
        assert (fix.text, condition.left, condition.right) == ("Pin it.", "Flash_Attn", "<3,>=2.5")

    def test_braces_elsewhere_are_text(self) -> None:
        assert parse_fix('Set {"bf16": true}.').conditions == ()

    @pytest.mark.parametrize("braces", ["{}", "{deepspeed}", "{<1}", "{a<1; python_version>'3'}", "{a[b]<1}"])
    def test_leading_braces_must_be_a_condition(self, braces: str) -> None:
        with pytest.raises(ValueError, match="is neither a condition"):
            parse_fix(f"{braces} text")
