"""Lines that tell what a run is doing: evaluating, saving, sampling, serving, ending, starting again."""

from __future__ import annotations

import re
from typing import Literal

from stallwatch_rules.records import Phase
from stallwatch_rules.text.lazy import lazy

#: "left": a process ended with success, as all do at the end of a run; "announced": an evaluation is, and its
#: bar comes next
Sign = Phase | Literal["announced", "finished", "left", "restarted"]
ANNOUNCES = "***"  #: stands in each line that announces an evaluation

# A program's own words for it, behind whatever its logger puts before them.
_LOGGED = r"(?:^|[\]:|>-] ?|\b(?:DEBUG|INFO|WARNING) +(?:[\w./]+:\d+:? )?)"
_BEGINS = re.compile(
    rf"(?i){_LOGGED}(?:running|start(?:ing)?|begin(?:ning)?|performing|entering) (?:the |an? )?"
    r"(?:validation|evaluation|eval)\b(?!:? (?:every|interval|strategy|server|thread|worker|process|data|loss"
    r"|took|done|finished|complete|after\b|from\b|at (?:step|epoch)s?[:=]))"
    rf"|{_LOGGED}(?:evaluating|validating(?! (?:the )?(?:config|checkpoint|data|file|input|argument|token)))"
    r"\b.{0,40}(?:\.\.\.|…)\s*$"
    rf"|{_LOGGED}(?:开始|正在)(?:进行|模型|在验证集上)?(?:验证|评估|评测)(?=\s*(?:$|[.…。:：(（,，]|第))"
)

# Each entry: words that must stand in the line (cheap), and the pattern that decides.
_SIGNS: tuple[tuple[str, re.Pattern[str], Sign], ...] = (
    ("Running ", re.compile(r"\*{3,} ?Running (?:Evaluation|Prediction|[Ii]nference)"), "announced"),
    ("Eval", re.compile(r"^(?:\S* ?- ?)?Evaluating\b|^Evaluation(?: \w+)?: +\d+%\|"), "eval"),
    ("oss at iteration", re.compile(r"^ ?(?:valid|validation|test) loss at iteration \d+ \|"), "eval"),
    ("Valid", re.compile(r"^Validat(?:ion|ing)\b.{0,40}:? +\d+%\|"), "eval"),
    ("alidat", _BEGINS, "eval"),
    ("valuat", _BEGINS, "eval"),
    (" eval", _BEGINS, "eval"),
    ("验证", _BEGINS, "eval"),
    ("评", _BEGINS, "eval"),
    ("Predict", re.compile(r"^Predicting\b.{0,40}\d+%\|"), "eval"),
    ("aving ", re.compile(r"\b[Ss]aving (?:the )?(?:model|final|check ?point)"), "save"),
    ("Writing model", re.compile(r"^Writing model shards:"), "save"),
    ("prompts", re.compile(r"^Processed prompts: +\d+%\|"), "rollout"),
    ("ollout", re.compile(r"^(?:[Rr]ollouts?|Making experiences?)\b.{0,40}\d+%\|"), "rollout"),
    (
        "raining ",
        re.compile(r"\bTraining completed\b|\b[Tt]raining (?:has |is )?(?:finished|complete)\b"),
        "finished",
    ),
    (
        "inal ",
        re.compile(
            r"\b[Ff]inal (?:eval|val|test|train)[\w ]{0,30}(?:acc|loss|score|reward|metric)\w*\s?[:=]"
        ),
        "finished",
    ),
    # Lightning (lightning 2.6.6, pytorch/loops/fit_loop.py); with no batches it trained nothing.
    (
        "rainer.fit",
        re.compile(
            r"`Trainer\.fit` stopped: `(?:max_(?:steps|epochs|time)=.{1,60}` reached|trainer\.should_stop`)"
        ),
        "finished",
    ),
    # MLPerf's last record (mlperf_logging), of a run that reached its target.
    (
        ":::MLLOG",
        re.compile(r":::MLLOG \{.{1,200}\"key\": \"run_stop\".{1,300}\"status\": \"success\""),
        "finished",
    ),
    # The result of an evaluation that nothing announced: what follows (a better model kept, samples drawn)
    # is no step either.
    (
        "val_",
        re.compile(r"\be?val_(?:acc(?:uracy)?|loss|ppl|perplexity|score|reward|f1)\b[\"']?\s*[:=]\s*-?\d"),
        "eval",
    ),
    ("exits successfully", re.compile(r"\bProcess \d+ exits successfully"), "left"),
    ("estart", re.compile(r"\b(?:will restart|[Rr]estarting) (?:the )?worker(?:s| group)"), "restarted"),
)


SIGN_WORDS: tuple[str, ...] = tuple(word for word, _, _ in _SIGNS)


def sign_of(text: str) -> Sign | None:
    """What the line tells about the run, if anything."""
    if len(text) > 2000:
        return None
    for word, pattern, sign in _SIGNS:
        if word in text and pattern.search(text):
            return sign
    return None


WORDS = ("HTTP/", "throughput")  #: a line of each kind holds one of these

#: uvicorn 0.54.0: ``config.py``, the access log's format. What only asks for the server's state, or sets it,
#: is no work: ``GET /health`` is answered by a server whose engine hangs, too.
_ANSWERED = lazy(
    r'"POST /(?:v\d+/|generate|chat|completions?\b|inference|infer\b|invocations|embed|score|rerank|classify)'
    r'[^" ]* HTTP/\d(?:\.\d)?" 2\d\d\b'
)
#: vLLM 0.11.0: ``v1/metrics/loggers.py``; SGLang: its scheduler's "Decode batch" lines. An engine that
#: has nothing to do, or hangs, reports 0.
_GENERATED = lazy(r"(?:Avg generation throughput: |gen throughput \(token/s\): )(?!0(?:\.0*)?(?![\d.]))\d")


def is_answer(text: str) -> bool:
    """Whether the line says that a request was answered, or tokens generated."""
    return ("HTTP/" in text and _ANSWERED.search(text) is not None) or (
        "throughput" in text and _GENERATED.search(text) is not None
    )
