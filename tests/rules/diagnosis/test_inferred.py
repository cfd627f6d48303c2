"""Exceptions without a rule, attributed to the code that raised them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from smallruns import FINISHED

from stallwatch_rules.endings import Ending
from stallwatch_rules.failures.raised import ExceptionChain, Frame, LinePosition, page_of_place
from stallwatch_rules.locale import render, rendered
from stallwatch_rules.matching.matcher import Matcher, lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import RaisedIn, RulePage
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Line

Read = Callable[..., Diagnosis]

SITE = "/opt/env/lib/python3.11/site-packages"


def traceback(exception: str, *frames: tuple[str, str], rank: str = "") -> str:
    lines = [
        "Traceback (most recent call last):",
        '  File "/srv/me/train.py", line 9, in <module>',
        "    main()",
    ]
    for path, name in frames:
        lines += [f'  File "{path}", line 7, in {name}', "    call()"]
    return "".join(f"{rank}{line}\n" for line in (*lines, exception))


@pytest.fixture
def read(catalogue: Catalogue, matcher: Matcher) -> Read:
    def diagnose(text: str, ending: Ending | None = None) -> Diagnosis:
        reading = RunReading(catalogue, matcher)
        reading.feed(lines_of(text))
        return reading.diagnose(ending)

    return diagnose


@pytest.mark.parametrize(
    ("exception", "frames", "rule"),
    [
        (
            "ValueError: there are reduced-precision gradients here",
            [("torch/amp/grad_scaler.py", "unscale_"), ("torch/amp/grad_scaler.py", "_unscale_grads_")],
            "fp16-unscale-error",
        ),
        (
            "ValueError: nobody has said which one this is",
            [("torch/distributed/rendezvous.py", "_env_rendezvous_handler")],
            "env-rendezvous-missing-variable",
        ),
        (
            "KeyError: 'stage'",
            [("deepspeed/checkpoint/ds_to_universal.py", "main"), ("deepspeed/checkpoint/odd.py", "get")],
            "universal-checkpoint-error",
        ),
        ("deepspeed.runtime.zero.utils.ZeRORuntimeException: odd", [], "checkpoint-world-size-mismatch"),
        (
            "AssertionError",
            [("deepspeed/utils/groups.py", "_create_model_parallel")],
            "deepspeed-dist-not-initialized",
        ),
        (
            "safetensors_rust.SafetensorError: over quota",
            [("safetensors/torch.py", "save_file")],
            "disk-full-checkpoint",
        ),
        (
            "NotImplementedError",
            [("verl/utils/reward_score/__init__.py", "_default_compute_score")],
            "reward-function-unfit",
        ),
        (
            "ConnectionRefusedError: [Errno 111] Connection refused",
            [("transformers/modelcard.py", "__post_init__"), ("urllib3/connection.py", "connect")],
            "hf-hub-network-failure",
        ),
    ],
)
def test_raising_code_determines_the_rule(
    exception: str, frames: list[tuple[str, str]], rule: str, read: Read
) -> None:
    diagnosis = read(traceback(exception, *((f"{SITE}/{path}", name) for path, name in frames)))
    primary = diagnosis.primary
    assert primary is not None
    assert (diagnosis.verdict, primary.rule, primary.inferred) == ("failed", rule, "place")
    assert primary.confidence <= 0.6
    assert primary.evidence[0] == exception
    (finding,) = diagnosis.findings
    assert "No rule matches the exception's message" in (note := render(finding.note))
    assert (frames[0][0] if frames else "ZeRORuntimeException") in note
    assert diagnosis.unknown[0].exception == exception.partition(":")[0], "the exception itself stays"
    assert not any("might be the cause" in render(note) for note in diagnosis.notes)


@pytest.mark.parametrize(
    ("exception", "path", "name"),
    [
        ("TypeError: there are reduced-precision gradients", "torch/amp/grad_scaler.py", "_unscale_grads_"),
        ("ValueError: there are reduced-precision gradients", "torch/amp/grad_scaler.py", "step"),
        ("ValueError: there are reduced-precision gradients", "other/amp/grad_scaler.py", "_unscale_grads_"),
        ("NotImplementedError", "verl/utils/reward_score/math.py", "compute_score"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "myhub/modelcard.py", "__post_init__"),
    ],
)
def test_other_exceptions_functions_and_files_do_not_match(
    exception: str, path: str, name: str, read: Read
) -> None:
    diagnosis = read(traceback(exception, (f"{SITE}/{path}", name)))
    assert (diagnosis.verdict, diagnosis.primary) == ("unknown-failure", None)


def test_callees_match_only_if_the_page_allows_it(read: Read) -> None:
    inner = [(f"{SITE}/torch/amp/grad_scaler.py", "_unscale_grads_"), ("/srv/me/model.py", "hook")]
    assert read(traceback("ValueError: no such luck", *inner)).primary is None


def test_similar_words_alone_name_no_cause(read: Read) -> None:
    """The texts may be very similar: most exceptions without a rule have no page."""
    text = "ValueError: Free memory on device cuda (8.0/64.0 GiB) at startup is below the desired utilization"
    diagnosis = read(traceback(text, (f"{SITE}/vllm/worker/gpu_worker.py", "check")))
    assert (diagnosis.verdict, diagnosis.primary) == ("unknown-failure", None)
    assert diagnosis.unknown[0].nearest[0].rule == "vllm-kv-cache-no-memory"


@pytest.mark.parametrize(
    "exception",
    [
        "KeyError: 'colour'",
        "ValueError: the recipe needs more salt than the kitchen holds",
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "IndexError: list index out of range",
        "RuntimeError: the model weights cannot be saved at this step",
        "AssertionError",
        # a few rare words of a short sentence
        "ValueError: first row must be less than or equal to last row",
        "ValueError: Vision and audio are mutually exclusive",
        # the program's own requests, to a server that no page knows
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='scores', port=443): Read timed out.",
        "httpx.ReadTimeout: timed out",
        "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host scores:8000 ssl:default",
        "openai.APITimeoutError: Request timed out.",
    ],
)
def test_mistakes_in_user_code_stay_unknown(exception: str, read: Read) -> None:
    diagnosis = read(traceback(exception, ("/srv/me/data.py", "load")))
    assert (diagnosis.verdict, diagnosis.primary) == ("unknown-failure", None)


UNSCALE = traceback("ValueError: reduced gradients", (f"{SITE}/torch/amp/grad_scaler.py", "_unscale_grads_"))


def test_successful_or_continuing_run_gets_no_inferred_cause(read: Read) -> None:
    assert read(UNSCALE, ending=FINISHED).primary is None
    steps = "".join(f"step {n}/40 loss 0.{n}\n" for n in range(10, 40))
    assert read(steps[:60] + UNSCALE + steps).verdict == "unfinished"


def test_matching_rule_has_precedence_over_an_inferred_one(read: Read) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity"
    primary = read(oom + " of 79.15 GiB of which 1.00 GiB is free.\n" + UNSCALE).primary
    assert primary is not None
    assert (primary.rule, primary.inferred) == ("cuda-oom", "")


def test_inferred_cause_replaces_a_launcher_summary(read: Read) -> None:
    ranks = "".join(
        traceback(
            "ValueError: odd", (f"{SITE}/torch/amp/grad_scaler.py", "_unscale_grads_"), rank=f"[rank{n}]: "
        )
        for n in (3, 1)
    )
    summary = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    diagnosis = read(ranks + summary)
    assert diagnosis.primary is not None
    assert diagnosis.primary.rule == "fp16-unscale-error"
    first, *rest = diagnosis.findings
    assert (first.rule, first.ranks, first.count) == ("fp16-unscale-error", [1, 3], 2)
    assert [item.rule for item in rest] == ["torchrun-child-failed"]


def page_with(catalogue: Catalogue, rule: str, *places: RaisedIn) -> RulePage:
    return msgspec.structs.replace(catalogue.pages[rule], raised_in=list(places))


def test_innermost_location_has_precedence(catalogue: Catalogue) -> None:
    lib = "/env/lib/python3.11/site-packages"
    outer = page_with(catalogue, "cuda-oom", RaisedIn("a/b.py", ["f"], below=True))
    inner = page_with(catalogue, "npu-oom", RaisedIn("a/c.py", ["g"]))
    said = page_with(catalogue, "dtype-mismatch", RaisedIn("a/", message="no (?:luck|way)", below=True))
    line = Line("ValueError: no luck", "x", 1)
    calls = [Frame(f"{lib}/a/b.py", 1, "f"), Frame("C:\\Lib\\site-packages\\a\\c.py", 2, "Some.g")]
    raised = ExceptionChain("ValueError", "no luck", line, LinePosition(), calls)
    assert page_of_place(raised, [outer, inner]) == (inner, calls[1])
    assert page_of_place(raised, [outer, inner, said]) == (said, calls[1])
    same = page_with(catalogue, "cuda-oom", RaisedIn("a/c.py", ["g"]))
    assert page_of_place(raised, [same, inner]) is None, "two pages say the same"


def test_user_code_is_not_taken_for_a_library(read: Read) -> None:
    """Folders may be called ``triton`` or ``wandb`` anywhere, and a sweep's agent calls the whole program."""
    failed = "subprocess.CalledProcessError: Command '['git', 'describe']' returned non-zero exit status 128."
    timeout = "ReadTimeout: "  # no word of the rule: only the places match
    requests = (f"{SITE}/requests/adapters.py", "send")
    triton = (f"{SITE}/triton/runtime/build.py", "_build")
    wandb = (f"{SITE}/wandb/agents/pyagent.py", "_run_job")
    assert _primary(read(traceback(failed, triton))) == "triton-compile-failed"
    assert _primary(read(traceback(failed, ("/srv/me/kernels/triton/version.py", "version")))) is None
    assert _primary(read(traceback(timeout, wandb, requests))) == "wandb-network-failure"
    assert _primary(read(traceback(timeout, ("/srv/wandb/latest/code/train.py", "f"), requests))) is None
    assert _primary(read(traceback(timeout, wandb, ("/srv/me/data.py", "fetch"), requests))) is None


def test_later_exception_is_ignored_if_the_first_has_no_known_location(read: Read) -> None:
    wandb = (f"{SITE}/wandb/sdk/wandb_run.py", "finish")
    first = traceback("KeyError: 'reward'", ("/srv/me/data.py", "load"), rank="[rank1]: ")
    then = traceback("requests.exceptions.ConnectionError: refused", wandb, rank="[rank0]: ")
    assert _primary(read(then)) == "wandb-network-failure"
    diagnosis = read(first + then)
    assert (diagnosis.verdict, diagnosis.primary) == ("unknown-failure", None)
    assert _primary(read(then + first)) == "wandb-network-failure"


def test_no_cause_is_inferred_without_an_order_of_files(catalogue: Catalogue, matcher: Matcher) -> None:
    reading = RunReading(catalogue, matcher)
    reading.feed(lines_of(UNSCALE, source="rank0.log"))
    assert _primary(rendered(reading.diagnose())) == "fp16-unscale-error"
    other = traceback("KeyError: 'reward'", ("/srv/me/data.py", "load"))
    reading.feed(lines_of(other, source="rank1.log"))
    assert _primary(rendered(reading.diagnose())) is None


def _primary(diagnosis: Diagnosis) -> str | None:
    return diagnosis.primary.rule if diagnosis.primary is not None else None


def test_locations_exist_in_installed_packages(catalogue: Catalogue) -> None:
    """A moved place would never match again; a page may name older places beside the present one."""
    gone = []
    for page in catalogue.pages.values():
        known = [
            found for item in page.raised_in if item.file for found in [_found(item)] if found is not None
        ]
        if known and not any(known):
            gone.append(page.id)
    assert not gone


def _found(place: RaisedIn) -> bool | None:
    package, _, inside = place.file.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    file = Path(spec.submodule_search_locations[0], inside)
    if not file.exists():
        return False
    source = file.read_text(encoding="utf-8") if file.is_file() else ""
    return not place.functions or any(
        re.search(rf"def {re.escape(name)}\b", source) for name in place.functions
    )


def test_argument_checks_are_not_taken_for_missing_resources(read: Read) -> None:
    """Megatron-LM and LLaMA-Factory check packages, folders and launchers where they compare arguments."""

    def megatron(words: str) -> str | None:
        return _primary(
            read(
                traceback(f"AssertionError: {words}", ("/w/megatron/training/arguments.py", "validate_args"))
            )
        )

    def factory(words: str) -> str | None:
        return _primary(
            read(
                traceback(
                    f"ValueError: {words}", (f"{SITE}/llamafactory/hparams/parser.py", "get_train_args")
                )
            )
        )

    conflict = "training-arguments-conflict"
    assert megatron("sequence parallelism needs tensor parallelism") == conflict
    assert megatron("transformer engine is not installed") == "package-versions-conflict"
    assert megatron("--load /ckpt does not exist") == "resume-checkpoint-failed"
    assert factory("Adapter is only valid for the LoRA method.") == conflict
    assert factory("Please use `FORCE_TORCHRUN=1` to launch DeepSpeed training.") is None
    assert factory("Output directory already exists and is not empty.") is None


def test_offloaded_modules_are_recognized_by_location(read: Read) -> None:
    words = "Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit"
    place = (f"{SITE}/transformers/quantizers/quantizer_bnb_4bit.py", "validate_environment")
    primary = read(traceback(f"ValueError: \n    {words}", place)).primary
    assert primary is not None
    assert (primary.rule, primary.inferred) == ("cuda-oom", "place")
