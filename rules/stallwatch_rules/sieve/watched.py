"""What else than a rule's match makes a line worth reading in a log that is too long to be read whole.

These are patterns over raw bytes. They let a line through to those who read it (``tracebacks``,
``launchers``, ``phases``, ``environment``, ``samples``) and decide nothing themselves: too many cost time,
one too few makes the reading blind.
"""

from __future__ import annotations

from typing import NamedTuple


class Watch(NamedTuple):
    """A kind of line that is read wherever it stands."""

    name: str
    patterns: tuple[str, ...]
    before: int  #: lines before it that are read, too
    after: int
    budget: int  #: so many in a stretch of the source; more of them teach nothing
    seldom: bool = False  #: not every cell is searched for it


TRACEBACK = Watch("traceback", (r"[Tt]raceback \(most recent call last\)",), 4, 0, 1 << 30)

_PACKAGE = r"(?:torch|deepspeed|transformers|accelerate|trl|peft|vllm|nccl|python|cuda)"

WATCHES: tuple[Watch, ...] = (
    TRACEBACK,
    Watch("frame", (r'File "[^"\r\n]+", line \d+, in ',), 2, 20, 40),
    Watch(
        "crash",
        (
            r"terminate called",
            r"what\(\): ",
            r"Fatal Python error",
            r"\*\*\* SIG[A-Z]+ ",
            r"Exception in thread ",
            r"Exception ignored (?:in|on|while)",
            r"Error in (?:atexit|sys\.excepthook)",
            r"KeyboardInterrupt",
        ),
        4,
        40,
        60,
    ),
    Watch(
        "launcher",
        (
            r"Root Cause \(first observed failure\)",
            r"exits with return code",
            r"failed \(exitcode",
            r"rank\s{0,9}: \d{1,6} \(local_rank",
            r"exitcode\s{0,9}: -?\d",
            r"ChildFailedError",
        ),
        2,
        2,
        4096,
    ),
    Watch(
        "course",
        (
            r"\*{3,} ?Running (?:Evaluation|Prediction|[Ii]nference|training)",
            r"\b[Ss]aving (?:the )?(?:model|final|check ?point)",
            r"Writing model shards:",
            r"[Tt]raining (?:has |is )?(?:finished|complete)",
            r"[Ff]inal (?:eval|val|test|train)",
            r"Process \d+ exits successfully",
            r"`Trainer\.fit` stopped: `",
            r"(?:will restart|[Rr]estarting) (?:the )?worker",
            r"train_runtime",
        ),
        0,
        1,
        1000,
    ),
    Watch(
        "version",
        (
            # In three, as hyperscan needs twice as long for the three in one, whose words are too short.
            rf"(?i){_PACKAGE}[ \w()?`]{{0,24}}version[ .:=]{{1,40}}v?\d\.\d",
            rf"(?i){_PACKAGE}[\w-]{{0,24}}`? ?==? ?v?\d\.\d",
            r"(?i)deepspeed`? info[ .:=]{1,40}v?\d\.\d",
            r"DeepSpeed info: version=",
            r"(?:DeepSpeed|PyTorch|[Tt]ransformers|vLLM|Python|trl|peft|accelerate) v?\d+\.\d+",
            r"(?:torch|deepspeed|transformers|accelerate|trl|peft)-\d+\.\d+[\w.+]*(?:\.dist-info|-py\d)",
        ),
        0,
        0,
        60,
        seldom=True,
    ),
    Watch(
        "run",
        (
            r"Setting ds_accelerator to ",
            r"Initializing TorchBackend",
            r"\bNCCL version ",
            r"Setting OMP_NUM_THREADS",
            r"Total optimization steps = ",
            r"trainable params: ",
        ),
        0,
        0,
        20,
        seldom=True,
    ),
    # A runtime's partial record: what follows belongs to it.
    Watch("partial", (r"Z (?:stdout|stderr) P(?::\w+)? ",), 0, 1, 2000),
)

#: Lines that say that something is wrong; what they say is looked at once per wording.
SEVERE = (
    "rror",
    "ERROR",
    "Fail",
    "fail",
    "FAIL",
    "FATAL",
    "Fatal",
    "fatal",
    "CRITICAL",
    "xception",
    "Abort",
    "abort",
    "Kill",
    "kill",
    "TIMEOUT",
    "Timeout",
    "timeout",
    "nvalid",
    "annot",
    "efused",
    "rash",
    "anic",
    "错误",
    "失败",
    "异常",
    "imed out",
    "nable to",
)
#: Warnings stand on many lines of a healthy log: they are looked for in some of the cells only.
WARNING = r"[Ww]arn|WARN|\[[EWF]\d{0,4} |\b[EWF]\d{4} \d\d:|警告"

#: Lines with numbers of a training, by kind: each kind gets its share of a cell. A kind is named as the first
#: word of its ``Sample.series``, where they have one.
METRICS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("bar", (r"\d/\d{1,15} \[[\d:]+<", r"Progress on:train")),
    (
        "dict",
        (
            r"""['"](?:[\w /]{1,20}[_/ ])?loss['"]\s?:""",
            r"""['"](?:current_steps|(?:train/)?global_step(?:/max_steps)?|steps?|iter)['"]\s?:""",
        ),
    ),
    ("timer", (r"/global_step=\d",)),
    ("text", (r"(?i)(?:steps?|iter(?:ation)?s?|num_updates)\s{0,4}[:=：#]?\s{0,9}\[?\s{0,9}\d",)),
    (
        "loss",
        (
            r"(?i)loss\s?[:=：]\s{0,9}[-\d.]",
            r"Epoch(?:\(train\))?:? {1,2}\[\d",
            r"s:\d{1,15} t(?:rl|el):",
            r'"key": "(?:(?:train_|eval_)?loss|eval_error|tracked_stats)", "value":',  # MLPerf
        ),
    ),
    ("", (r"loss scale", r"[Oo]verflow|OVERFLOW", r"MemAllocated=|\bMA \d")),
    (
        "phase",
        (
            r"Evaluat(?:ing|ion)",
            r"Validat(?:ing|ion)",
            r"Predicting",
            r"Processed prompts:",
            r"[Rr]ollouts?\b",
        ),
    ),
)

#: The kinds of series that a kind of metric lines may hold, where that is not the one of its name.
SERIES = {"loss": ("loss", "epoch", "text"), "": (), "phase": ()}
