"""No text makes the reading of samples fail or take long."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line
from stallwatch_rules.samples import extract
from stallwatch_rules.samples.series import SeriesReader

TOKENS = st.sampled_from(
    [
        *("step", "loss", "epoch", "{", "}", "'", '"', ":", "=", "/", ",", "[", "]", "<", "|", "%", " ", "-"),
        *("1", "9" * 5000, "1_", "1e999", ".5", "nan", "-inf", "٣", "²", "00:01", "1:2:3", "it/s", "s/it"),
        *("'step': ", "'loss': ", "global_step/max_steps", "s:1 trl:", "Attempted loss scale: "),
        *("MA 1 GB  Max_MA ", "train_time:", "ms", "iteration", "(ms)", "Epoch: [1]  ["),
    ]
)


@given(st.lists(TOKENS, max_size=25))
@settings(max_examples=200, deadline=None)
def test_any_text_can_be_read(tokens: list[str]) -> None:
    line = Line("".join(tokens), "train.log", 1)
    ProgressTracker().add(extract(line), line)


def test_row_without_a_finite_counter_is_skipped() -> None:
    reader = SeriesReader()
    rows = [f"{count}-nan loss=0.{9 - count}" for count in range(1, 6)]
    samples = [reader.read(Line(row, "train.log", 1)) for row in (*rows, "nan-5 loss=0.3", "inf-5 loss=0.3")]
    assert [sample and sample.step for sample in samples[-3:]] == [5, None, None]


def test_long_line_of_brackets_is_read_quickly() -> None:
    """Linear work on hostile text: a quadratic pattern would take minutes here."""
    for text in (
        "[" * 60_000 + "/s]<",
        "step " * 12_000 + "loss",
        "{'a': 1, " * 6_000 + "loss}",
        "1," * 30_000 + "step 1 loss",
    ):
        extract(Line(text, "train.log", 1))


def test_text_before_metrics_is_read_consistently() -> None:
    """Each of these has more than 2 ** 60 divisions, all of which were tried."""
    for part in ("[", "0.", "0T0:", "0-0T0 ", "0T0,0."):
        extract(Line((part * 190)[:190] + "Z {'loss': 1.5, 'step': 3}", "train.log", 1))
