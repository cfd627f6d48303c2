"""Equal messages of different exceptions: the calls in the traceback show the origin."""

from __future__ import annotations

import pytest

from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading

PACKAGES = "/opt/venv/lib/python3.11/site-packages/"
OWN = "/home/li/train.py"


def rule_of(catalogue: Catalogue, error: str, *calls: tuple[str, str]) -> str:
    """Return the rule for a traceback with these calls, and its confidence unless it is a guess."""
    lines = ["Traceback (most recent call last):", f'  File "{OWN}", line 9, in <module>', "    main()"]
    lines += [f'  File "{file}", line 31, in {name}' for file, name in calls] if calls else []
    reading = RunReading(catalogue)
    reading.feed(lines_of("".join(f"{line}\n" for line in ([*lines, error] if calls else [error]))))
    primary = rendered(reading.diagnose()).primary
    return primary.rule if primary is not None and primary.confidence > 0.6 else ""


@pytest.mark.parametrize(
    ("rule", "error", "its", "others"),
    [
        (
            "resume-checkpoint-failed",
            "KeyError: 'optimizer'",
            (OWN, "load_checkpoint"),
            (OWN, "build"),
        ),
        (
            "env-rendezvous-missing-variable",
            "KeyError: 'RANK'",
            ("/usr/lib/python3.11/os.py", "__getitem__"),
            ("/home/li/cards.py", "parse"),
        ),
        (
            "zero3-autograd-next-functions-none",
            "AttributeError: 'NoneType' object has no attribute 'next_functions'",
            (f"{PACKAGES}deepspeed/runtime/utils.py", "count_used_parameters_in_backward"),
            ("/home/li/viz.py", "walk"),
        ),
        (
            "model-architecture-unknown",
            "KeyError: 'qwen3_moe'",
            (f"{PACKAGES}transformers/models/auto/configuration_auto.py", "__getitem__"),
            ("/home/li/prices.py", "cost"),
        ),
        (
            "checkpoint-archive-corrupt",
            "EOFError: Ran out of input",
            (f"{PACKAGES}torch/serialization.py", "_legacy_load"),
            ("/usr/lib/python3.11/multiprocessing/spawn.py", "_main"),
        ),
        (
            "chat-template-refused-messages",
            "jinja2.exceptions.UndefinedError: 'item' is undefined",
            (f"{PACKAGES}transformers/utils/chat_template_utils.py", "render_jinja_template"),
            ("/home/li/report.py", "render"),
        ),
    ],
)
def test_text_counts_only_with_the_frames_of_the_page(
    catalogue: Catalogue, rule: str, error: str, its: tuple[str, str], others: tuple[str, str]
) -> None:
    assert rule_of(catalogue, error, its) == rule
    assert rule_of(catalogue, error) == rule  # the origin is unknown
    assert rule_of(catalogue, error, others) == ""


@pytest.mark.parametrize(
    ("file", "name", "rule"),
    [
        (f"{PACKAGES}vllm/model_executor/models/llama.py", "load_weights", "vllm-weight-names-mismatch"),
        (f"{PACKAGES}vllm_free/merge_adapter.py", "merge", ""),
    ],
)
def test_names_of_lora_layers_count_only_if_weights_are_sent(
    catalogue: Catalogue, file: str, name: str, rule: str
) -> None:
    error = "KeyError: 'layers.3.mlp.down_proj.base_layer.weight'\nINFO the vLLM engine shuts down"
    assert rule_of(catalogue, error, (file, name)) == rule


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("TypeError: Batch.pin_memory() missing 1 required positional argument: 'device'", "pin_memory"),
        (
            "ConnectionResetError: Caught ConnectionResetError in pin memory thread for device 0.",
            "do_one_step",
        ),
        ("AttributeError: Caught AttributeError in pin memory thread for device 0.", "pin_memory"),
    ],
)
def test_pin_memory_errors_are_not_always_out_of_memory(catalogue: Catalogue, error: str, name: str) -> None:
    call = (f"{PACKAGES}torch/utils/data/_utils/pin_memory.py", name)
    assert rule_of(catalogue, error, call) == ""
    assert rule_of(catalogue, "RuntimeError: CUDA error: invalid argument", (call[0], "pin_memory")) == (
        "pinned-memory-alloc-failed"
    )


def test_lost_terminal_is_recognized(catalogue: Catalogue) -> None:
    error = "OSError: [Errno 5] Input/output error"
    assert rule_of(catalogue, error, (f"{PACKAGES}tqdm/utils.py", "inner")) == "sighup-terminal-closed"
    assert rule_of(catalogue, error, ("/home/li/data.py", "read")) == "storage-failed"


LOADS, CONFIGURES = "optimizer.load_state_dict(saved['optimizer'])", "rate = settings['optimizer']['lr']"
SHOWN = {
    "whole": [
        "Traceback (most recent call last):",
        f'  File "{OWN}", line 9, in <module>',
        "    main()",
        f'  File "{OWN}", line 31, in main',
        "    {source}",
    ],
    "cut": [f'  File "{OWN}", line 31, in main', "    {source}"],
    "rank": [
        "[rank3]: Traceback (most recent call last):",
        f'[rank3]:   File "{OWN}", line 31, in main',
        "[rank3]:     {source}",
        "[rank3]:     ~~~~~^^^^^^^",
    ],
    "notebook": [
        "KeyError                                  Traceback (most recent call last)",
        "Cell In[3], line 4",
        "      2 saved = read()",
        "----> 4 {source}",
        "",
    ],
}


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize(("source", "rule"), [(LOADS, "resume-checkpoint-failed"), (CONFIGURES, "")])
def test_failing_statement_identifies_the_location(
    catalogue: Catalogue, shown: str, source: str, rule: str, at: int
) -> None:
    error = "[rank3]: KeyError: 'optimizer'" if shown == "rank" else "KeyError: 'optimizer'"
    lines = lines_of("".join(f"{text.format(source=source)}\n" for text in (*SHOWN[shown], error)))
    lines = list(lines)
    reading = RunReading(catalogue)
    reading.feed(lines[:at])
    reading.feed(lines[at:])
    primary = rendered(reading.diagnose()).primary
    assert (primary.rule if primary is not None and primary.confidence > 0.6 else "") == rule


def test_text_in_a_statement_is_not_evidence(catalogue: Catalogue) -> None:
    calls = ("/home/li/cards.py", "parse"), ("/home/li/cards.py", "value\n    return row['RANK']")
    assert rule_of(catalogue, "KeyError: 'RANK'", *calls) == ""
