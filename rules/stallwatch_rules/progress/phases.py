"""Recognize lines that show the phase of a run (evaluation, saving, sampling, serving, end, or restart)."""

from __future__ import annotations

import re
from typing import Literal

from stallwatch_rules.records import Phase
from stallwatch_rules.text.lazy import lazy

#: The phase that a line shows, or one of five events. "announced": a bar of an evaluation follows.
#: "finished": the training reports its end. "ended": the line resembles lines that programs print at their
#: end. Such a line is used as evidence only if steps were completed before, but not after, the line.
#: "left": a process exited successfully, as all processes do at the end of a run. "restarted": the launcher
#: restarts the workers.
Sign = Phase | Literal["announced", "finished", "ended", "left", "restarted"]
ANNOUNCES = "***"  #: text in all lines that announce an evaluation

# The start of a program's message, after the prefix of a logger, if any.
_LOGGED = r"(?:^|[\]:|>-] ?|\b(?:DEBUG|INFO|WARNING) +(?:[\w./]+:\d+:? )?)"
_BEGINS = re.compile(
    rf"(?i){_LOGGED}(?:running|start(?:ing)?|begin(?:ning)?|performing|entering) (?:the |an? )?"
    r"(?:validation|evaluation|eval)\b(?!:? (?:every|interval|strategy|server|thread|worker|process|data|loss"
    r"|took|done|finished|complete|after\b|from\b|at (?:step|epoch)s?[:=]))"
    rf"|{_LOGGED}(?:evaluating|validating(?! (?:the )?(?:config|checkpoint|data|file|input|argument|token)))"
    r"\b.{0,40}(?:\.\.\.|…)\s*$"
    rf"|{_LOGGED}(?:开始|正在)(?:进行|模型|在验证集上)?(?:验证|评估|评测)(?=\s*(?:$|[.…。:：(（,，]|第))"
)

# Lines that programs print at their end, such as "Training finished". A line that mentions an epoch, a step,
# a file, or an evaluation before such words is not accepted, unless the line reports the best or the final
# result.
_TRAINING = (
    r"(?:(?:pre|fine)?-?train(?:ing|er)?|optimi[sz]ation|fine-?tuning|fitting|learning|experiment|run"
    r"|trial|job)"
)
_OVER = r"(?:finished|completed?|done|ended|concluded|converged|succe\w+)"
_LEAD = r"(?:^|[\]:|>-] ?|\b(?:debug|info|warning) +(?:[\w./]+:\d+:? )?)\W*"
_RAN = re.compile(rf"\b{_OVER} (?:\w+ )?{_TRAINING}\b|\b{_TRAINING}\b[^.!?]{{0,40}}\b{_OVER}\b")
# If the line contains the time per iteration, the total time belongs to a loop, such as an epoch or an
# evaluation, unless the header of the loop mentions the training (``MetricLogger`` in torchvision's
# references, DETR, MAE, and DINOv2).
_TOOK = re.compile(
    r"\b(?:total|overall)[ _](?:\w+[ _])?(?:time|runtime|duration)\b"
    r"(?!: [\d:, days]{4,24} \([\d.]+ ?s / it\))"
    r"|\btrain(?:ing)?:? {1,3}total time\b"
    r"|\btrain(?:ing)?[ _](?:time|took|runtime|duration)\b"
)
_DONE = re.compile(
    rf"{_LEAD}(?:all )?(?:done|finished|completed?)(?: (?:in|after) [\d.:]+ ?\w*)?[\s.!]*$"
    rf"|{_LEAD}(?:{_TRAINING}[ :]\W*(?:is )?)?{_OVER} (?:after )?\d+"
    r" (?:epoch|round|step|iteration|update)s?\b"
)
_FINAL = re.compile(
    rf"(?:{_LEAD}(?:the )?|\b(?:sav\w+|for) (?:the )?)final (?:\w+ )?(?:step|model|checkpoint|weights|eval\w*"
    r"|valid\w*|test\w*|train\w*|result|metric|score|accuracy|loss|reward|performance|perplexity"
    r"|policy|adapter)s?\b"
)
# A part of the training that a line names after the words for an end, as in "Finished training epoch 3". Such
# a line does not show the end of the training.
_OF_PART = re.compile(
    r"[\s:,-]*(?:(?:of|for|in) )?(?:the )?(?:epoch|step|iter\w*|round|fold|stage|phase)\W{0,3}\d"
)
_MERELY = re.compile(rf"(?i){_LEAD}(?:all )?(?:done|finished|completed?)[\s.!]*$")
_BEST = re.compile(
    rf"{_LEAD}best[ _]?(?:epoch|iter(?:ation)?|step|round|val\w*|test\w*|dev|model|score|acc\w*|loss"
    r"|result)s?\b"
    r"(?!.{0,80}(?:sav|so far|improv|new|updat|at step))"
)
_STOPPED = re.compile(
    r"\bearly[- ]?stop(?:ping|ped)\b"
    r"(?!.{0,40}(?:counter|patience|callback|out of|criteri|=|enabled|after \d+ (?:epoch|step)s? w))"
    r"|\bstopping[. !]*$"
)
_ABROAD = re.compile(
    r"训练(?:已|全部|过程)?(?:完成|结束|完毕)|完成训练|学習(?:が)?(?:完了|終了)|학습\s?(?:이\s?)?(?:완료|종료)"
    r"|обучение (?:завершено|окончено|закончено)|entra[iî]nement termin"
    r"|entrenamiento (?:completado|finalizado|terminado)|training (?:abgeschlossen|beendet)"
    r"|treinamento (?:conclu|finaliz|terminad)|addestramento (?:complet|terminat)"
)
_RESULTS = re.compile(
    rf"{_LEAD}(?:all |final )?results? (?:are |were |have been )?(?:saved|written|stored) (?:to|in)\b"
)
# Each entry contains a word in lowercase, which a line at a program's end must contain, and a regular
# expression, which makes the decision.
_ENDS = (
    *((word, _RAN) for word in ("finished", "complete", "done", "ended", "concluded", "converged", "succe")),
    *((word, _DONE) for word in ("finished", "complete", "done")),
    *((word, _TOOK) for word in ("total", "overall", "train")),
    *(("final", _FINAL), ("best", _BEST), ("stop", _STOPPED), ("results", _RESULTS)),
    *((word, _ABROAD) for word in ("训练", "学習", "학습", "обучение", "nement ", "amiento ")),
    *((word, _ABROAD) for word in ("abgeschlossen", "beendet", "treinamento", "addestramento")),
)
_PART = re.compile(
    r"\b(?:epochs?|steps?|iter\w*|batch\w*|rounds?|folds?|stages?|phases?|eval\w*|valid\w*|test\w*"
    r"|sav\w+|load\w*"
    r"|compil\w*|download\w*|data\w*|token\w*|warm\w*|rollouts?|generat\w*|checkpoint\w*|upload\w*)\b"
    r"|\b(?:not|until|when|if|once|will|before|fail\w*|error\w*|abort\w*|remaining|eta)\b|n't\b"
)
_END_WORDS = (
    *("inished", "omplete", "OMPLETE", "INISHED", "done", "Done", "DONE", " ended", "oncluded", "onverged"),
    *("ucce", "otal ", "otal_", "verall ", "raining t", "rain_t", "rain t", "Best", "best", "BEST", "inal "),
    *("arly", "topping", "esults ", "完成", "结束", "完毕", "完了", "終了", "완료", "종료"),
    *("авершен", "ончено", "termin", "inaliz", "abgeschlossen", "beendet"),
)
_LONGEST_END = 200  # maximum number of characters in a line that programs print at their end


def _seems_over(text: str) -> bool:
    """Return whether a line resembles lines that programs usually, but not always, print before they exit."""
    if len(text) > _LONGEST_END:
        return False
    lower, tried = text.lower(), None
    for word, pattern in _ENDS:
        if word in lower and pattern is not tried:
            tried, found = pattern, pattern.search(lower)
            if found is not None:
                return pattern not in (_RAN, _TOOK) or not (
                    _PART.search(lower, 0, found.end()) or _OF_PART.match(lower, found.end())
                )
    return False


def is_unnamed_completion(text: str) -> bool:
    """Return whether a line reports that something is complete, without naming what is complete."""
    return _MERELY.match(text) is not None


def announces_end(text: str) -> bool:
    """Return whether a line at the end of a run shows that the training ended.

    Such a line mentions the training, or mentions that the training ended before the planned total.
    """
    lower = text.lower()
    return any(pattern.search(lower) is not None for pattern in (_STOPPED, _ABROAD, _RAN))


# A Chinese message that reports only the end of the training. The duration can follow after a comma.
_FINISHED_IN_CHINESE = lazy(
    r"^(?!.*(?:[Ee]poch|[Ss]tep|[Ss]tage|[Pp]hase|[Ff]old|[Rr]ound|轮|步|阶段|折).*训练)"
    r".*(?:^|[\s\]】:：|>-])(?:模型|所有|全部|整个)?训练(?:任务|过程|全部)?(?:已经?)?(?:全部|成功)?(?:完成|完毕)了?"
    r"\s*(?:$|[.!,;。！，；~(（])"
)

# Does not match if the next words show that only part of the training ended.
_NOT_OF_PART = (
    r"(?! (?:for|of|in) (?:this(?! (?:run|job|model)\b)|that|each"
    r"|(?:the )?(?:current|first|next|last|previous)"
    r"|split|fold|stage|phase|part|chunk|shard|client|trial|domain|subset|round|epoch)\b)"
)

# Each entry contains text that must be in the line (a fast test), and a regular expression, which makes the
# decision.
_SIGNS: tuple[tuple[str, re.Pattern[str], Sign], ...] = (
    ("Running ", re.compile(r"\*{3,} ?Running (?:Evaluation|Prediction|[Ii]nference)"), "announced"),
    ("Eval", re.compile(r"^(?:\S* ?- ?)?Evaluating\b|^Evaluation(?: \w+)?: +\d+%\|"), "eval"),
    ("[Eval batch=", re.compile(r"\[Eval batch=\d+/\d+\] Eval on .{1,80} data\s*$"), "eval"),  # Composer
    ("oss at iteration", re.compile(r"^ ?(?:valid|validation|test) loss at iteration \d+ \|"), "eval"),
    ("Valid", re.compile(r"^Validat(?:ion|ing)\b.{0,40}:? +\d+%\|"), "eval"),
    *((word, _BEGINS, "eval") for word in ("alidat", "valuat", " eval", "验证", "评")),
    ("Predict", re.compile(r"^Predicting\b.{0,40}\d+%\|"), "eval"),
    ("aving ", re.compile(r"\b[Ss]aving (?:the )?(?:model|final|check ?point)"), "save"),
    ("Writing model", re.compile(r"^Writing model shards:"), "save"),
    ("prompts", re.compile(r"^Processed prompts: +\d+%\|"), "rollout"),
    ("ollout", re.compile(r"^(?:[Rr]ollouts?|Making experiences?)\b.{0,40}\d+%\|"), "rollout"),
    (
        "raining ",
        re.compile(
            r"^(?!.*\b(?:[Ee]poch|[Ss]tep|[Ss]tage|[Pp]hase|[Ff]old|[Rr]ound)\W{0,3}\d+\b.*[Tt]raining)"
            rf".*(?:\bTraining completed\b|\b[Tt]raining (?:has |is )?(?:finished|complete)\b){_NOT_OF_PART}"
        ),
        "finished",
    ),
    (
        "uning ",
        re.compile(
            r"^(?!.*\b(?:[Ee]poch|[Ss]tep|[Ss]tage|[Pp]hase|[Ff]old|[Rr]ound)\W{0,3}\d+\b.*[Tt]uning)"
            rf".*\b[Ff]ine-?[Tt]uning (?:has |is )?(?:finished|completed?)\b{_NOT_OF_PART}"
        ),
        "finished",
    ),
    (
        "inal ",
        re.compile(
            r"\b[Ff]inal (?:eval|val|test|train)[\w ]{0,30}(?:acc|loss|score|reward|metric)\w*\s?[:=]"
        ),
        "finished",
    ),
    *((word, _FINISHED_IN_CHINESE, "finished") for word in ("完成", "完毕")),
    # Lightning 2.6.6 (pytorch/loops/fit_loop.py). Other reasons to stop are excluded. For example, if
    # ``Trainer.fit`` stops because there are no batches, no training took place.
    (
        "rainer.fit",
        re.compile(
            r"`Trainer\.fit` stopped: `(?:max_(?:steps|epochs|time)=.{1,60}` reached|trainer\.should_stop`)"
        ),
        "finished",
    ),
    # The last record from MLPerf (mlperf_logging) in a run that reached its target.
    (
        ":::MLLOG",
        re.compile(r":::MLLOG \{.{1,200}\"key\": \"run_stop\".{1,300}\"status\": \"success\""),
        "finished",
    ),
    # The result of an evaluation that the log did not announce. The lines after the result do not show a step
    # either. For example, a better model is saved, or samples are drawn.
    (
        "val_",
        re.compile(r"\be?val_(?:acc(?:uracy)?|loss|ppl|perplexity|score|reward|f1)\b[\"']?\s*[:=]\s*-?\d"),
        "eval",
    ),
    ("exits successfully", re.compile(r"\bProcess \d+ exits successfully"), "left"),
    ("estart", re.compile(r"\b(?:will restart|[Rr]estarting) (?:the )?worker(?:s| group)"), "restarted"),
)


SIGN_WORDS: tuple[str, ...] = (*(word for word, _, _ in _SIGNS), *_END_WORDS)


def phase_sign(text: str) -> Sign | None:
    """Return the phase or the event that a line shows, or ``None`` if the line shows neither."""
    if len(text) > 2000:
        return None
    for word, pattern, sign in _SIGNS:
        if word in text and pattern.search(text):
            return sign
    return "ended" if _seems_over(text) else None


WORDS = ("HTTP/", "throughput")  #: each line about the work of a server contains at least one of these words

#: The format of the access log in uvicorn 0.54.0 (``config.py``). Requests that only read or set the state of
#: a server are excluded, because a server also answers ``GET /health`` while its engine does not respond.
_ANSWERED = lazy(
    r'"POST /(?:v\d+/|generate|chat|completions?\b|inference|infer\b|invocations|embed|score|rerank|classify)'
    r'[^" ]* HTTP/\d(?:\.\d)?" 2\d\d\b'
)
#: The formats of vLLM 0.11.0 (``v1/metrics/loggers.py``) and of the SGLang scheduler ("Decode batch" lines).
#: An engine that is idle or stalled reports a throughput of 0.
_GENERATED = lazy(r"(?:Avg generation throughput: |gen throughput \(token/s\): )(?!0(?:\.0*)?(?![\d.]))\d")


def is_answer(text: str) -> bool:
    """Return whether a line reports that a request was answered or that tokens were generated."""
    return ("HTTP/" in text and _ANSWERED.search(text) is not None) or (
        "throughput" in text and _GENERATED.search(text) is not None
    )
