"""Advice for an exception that no rule knows."""

from __future__ import annotations

import pytest

from stallwatch_rules.failures import advice
from stallwatch_rules.failures.advice import advice_for
from stallwatch_rules.failures.raised import ExceptionChain, LinePosition
from stallwatch_rules.locale import render
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Line
from stallwatch_rules.report.html import to_html
from stallwatch_rules.report.markdown import to_markdown

LINE = Line("", "a.log", 1)
CASES = [
    (
        "child",
        "subprocess.CalledProcessError",
        "Command '['torchrun', 'a.py']' died with <Signals.SIGKILL: 9>.",
    ),
    ("notebook", "papermill.exceptions.PapermillExecutionError", ""),
    ("trial", "ray.tune.error.TuneError", "('Trials did not complete', [train_0])"),
    ("none", "AttributeError", "'NoneType' object has no attribute 'decode'"),
    ("name", "UnboundLocalError", "local variable 'pid' referenced before assignment"),
    ("call", "TypeError", "Trainer.__init__() got an unexpected keyword argument 'tokenizer'"),
    ("key", "KeyError", "'image'"),
    ("setting", "omegaconf.errors.ConfigAttributeError", "Key 'lr' is not in struct"),
    ("attribute", "torch.nn.modules.module.ModuleAttributeError", "'Net' object has no attribute 'model'"),
    ("path", "FileNotFoundError", "[Errno 2] No such file or directory: 'data/train.pkl'"),
    ("path", "OSError", "Cannot save file into a non-existent directory: 'out'"),
    ("file", "FileNotFoundError", "no weights of epoch 3"),
    ("remote", "FileNotFoundError", "zstd://a.jsonl::hf://datasets/org/data@main/train/a.jsonl.zst"),
    ("remote", "FileNotFoundError", "https://example.org/data/train.tar"),
    ("unpack", "ValueError", "not enough values to unpack (expected 3, got 2)"),
    ("empty", "ZeroDivisionError", "float division by zero"),
    ("index", "IndexError", "list index out of range"),
    ("shape", "RuntimeError", "mat1 and mat2 shapes cannot be multiplied (8x10 and 12x4)"),
    ("check", "AssertionError", "label 10 out of range"),
    ("server", "ConnectionRefusedError", "[Errno 111] Connection refused"),
]


@pytest.mark.parametrize(("kind", "exception", "words"), CASES)
def test_exception_kind_has_advice(kind: str, exception: str, words: str) -> None:
    found = advice_for(exception, words)
    assert found is not None
    assert found.id == f"diagnosis.advice-{kind}"
    assert render(found, "en") != render(found, "zh")


def test_long_command_has_advice() -> None:
    """One pattern says which exceptions only report that something else failed, and advises on them."""
    words = f"Command '['python', 'train.py', '{'x' * 600}']' returned non-zero exit status 1."
    found = advice_for("subprocess.CalledProcessError", words)
    assert found is not None and found.id == "diagnosis.advice-child"
    raised = ExceptionChain("subprocess.CalledProcessError", words, LINE, LinePosition())
    assert raised.relays and raised.shows_teardown
    kinds = {
        kind
        for kind, exception, message in CASES
        if ExceptionChain(exception, message, LINE, LinePosition()).relays
    }
    assert kinds == {"child", "notebook", "trial"}


def test_every_kind_has_a_case() -> None:
    assert {kind.id for kind in advice.KINDS} == {kind for kind, _, _ in CASES}


@pytest.mark.parametrize("words", ["the moon is full", ""])
def test_generic_exception_type_has_no_advice(words: str) -> None:
    assert advice_for("ValueError", words) is None


def test_quoted_part_is_shortened() -> None:
    found = advice_for("KeyError", "'" + "x" * 500 + "'")
    assert found is not None
    assert len(str(found.params["key"])) == advice.LONGEST


def diagnosed(text: str, catalogue: Catalogue) -> Diagnosis:
    reading = RunReading(catalogue, Matcher(catalogue))
    reading.feed(lines_of(text))
    return reading.diagnose()


RAISED = """\
Traceback (most recent call last):
  File "/home/ada/run.py", line 9, in <module>
    {call}
{error}
"""
CHILD = RAISED.format(
    call="subprocess.check_call(command)",
    error="subprocess.CalledProcessError: Command '['torchrun', 'a.py']' returned non-zero exit status 1.",
)
OWN = RAISED.format(call='root = config["root"]', error="KeyError: 'curriculum_root'")


def test_reports_show_advice_below_the_frames(catalogue: Catalogue) -> None:
    found = diagnosed("step 1 loss 0.5\n" + OWN, catalogue)
    for text in (to_markdown(found), to_html(found)):
        assert "KeyError" in text.partition("run.py:9")[0]  # the place is in the headline
        assert "Print the keys that exist" in text


def test_failed_command_is_the_cause_only_if_it_is_alone(catalogue: Catalogue) -> None:
    alone = diagnosed("step 1 loss 0.5\n" + CHILD, catalogue)
    assert (alone.verdict, alone.unknown[0].exception) == ("unknown-failure", "subprocess.CalledProcessError")
    assert "the output of that command" in render(alone.unknown[0].advice, "en")
    both = diagnosed("step 1 loss 0.5\n" + OWN + CHILD, catalogue)
    assert [item.exception for item in both.unknown][:1] == ["KeyError"]


def test_exception_of_a_notebook_cell_has_precedence(catalogue: Catalogue) -> None:
    cell = """\
nbclient.exceptions.CellExecutionError: An error occurred while executing the following cell:
------------------
model.fit(x, y)
------------------

---------------------------------------------------------------------------
LookupError                               Traceback (most recent call last)
Cell In[7], line 1
----> 1 model.fit(x, y)

LookupError: the curriculum has no shard 17
"""
    runner = RAISED.partition("    {call}")[0] + "    run(notebook)\n" + cell
    found = diagnosed("step 1 loss 0.5\n" + runner, catalogue)
    assert [item.exception for item in found.unknown][:1] == ["LookupError"]
    assert found.verdict == "unknown-failure"
