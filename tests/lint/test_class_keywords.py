"""Keywords of calls are compared with the source of the installed classes."""

from __future__ import annotations

from importlib.util import find_spec
from textwrap import dedent

import pytest

from stallwatch.cli.check_inputs import sources_of
from stallwatch_lint.check_run import check_run
from stallwatch_lint.script import Script, parse_script
from stallwatch_lint.signatures import Signatures, Source
from stallwatch_rules.locale import render

MODULES = {
    "transformers": "if TYPE_CHECKING:\n    from .trainer import Trainer as Trainer, TrainingArguments",
    "transformers.trainer": """
        class Trainer:
            @deprecate_kwarg("tokenizer", new_name="processing_class")
            def __init__(self, model=None, args=None, *, processing_class=None): ...
        @dataclass
        class TrainingArguments:
            frozen: ClassVar[int] = 3
            output_dir: str | None = None
            made: int = field(init=False)
            eval_strategy: str = field(default="no")
    """,
    "trl": "from .trainer import *\nfrom .trainer import SFTConfig, SFTTrainer, OpenTrainer, MetaConfig",
    "trl.trainer": "from .sft import SFTConfig, SFTTrainer, OpenTrainer, MetaConfig",
    "trl.trainer.sft": """
        from transformers import Trainer, TrainingArguments
        from .base import _Base
        @dataclass
        class SFTConfig(_Base):
            max_length: int = 1024
        class SFTTrainer(Trainer):
            def __init__(self, model, args=None, processing_class=None): ...
        class OpenTrainer(Trainer):
            def __init__(self, model, **more): ...
        class MetaConfig(_Base, metaclass=Meta): ...
    """,
    "trl.trainer.base": """
        from transformers import TrainingArguments
        @dataclass
        class _Base(Mixin, TrainingArguments):
            packing: bool = False
        class Mixin: ...
    """,
}
PACKAGES = {"transformers", "trl", "trl.trainer"}
IMPORTS = (
    "import trl\nfrom trl import SFTConfig, SFTTrainer as S, OpenTrainer\nfrom transformers import Trainer\n"
)


def read(module: str) -> Source | None:
    text = MODULES.get(module)
    return None if text is None else Source(dedent(text), module in PACKAGES)


def found(text: str, transformers: str = "4.57.0") -> list[tuple[str, str]]:
    script = parse_script(IMPORTS + dedent(text), "train.py")
    assert isinstance(script, Script)
    versions = {"transformers": transformers, "trl": "1.16.0"}
    diagnostics = check_run(None, [script], versions, signatures=Signatures(read))
    return [(render(diagnostic.what), render(diagnostic.fix)) for diagnostic in diagnostics]


@pytest.mark.parametrize(
    ("call", "what", "fix"),
    [
        ("SFTConfig('o', max_seq_length=3)", "SFTConfig of trl 1.16.0 does not accept",
         "Use max_length instead (required in trl 0.20 and later)."),
        ("S(m, tokenizer=t)", "SFTTrainer of trl 1.16.0 does not accept", "Use processing"),
        ("S(m, max_length=3)", "SFTTrainer", "Pass this argument to SFTConfig"),
        ("trl.SFTConfig(pakcing=3)", "SFTConfig", "Did you mean packing?"),
        ("SFTConfig(frozen=3)", "SFTConfig", "Remove the unsupported argument."),
        ("SFTConfig(made=3)", "SFTConfig", "Remove the unsupported argument."),
        ("Trainer(m, wrong=1)", "Trainer of transformers 4.57.0 does not accept", "Remove the unsupported"),
        ("class Own(S):\n    pass\nOwn(m, tokenizer=t)", "SFTTrainer", "Use processing_class"),
    ],
)  # fmt: skip
def test_unknown_keyword_is_reported_with_a_fix(call: str, what: str, fix: str) -> None:
    ((given, remedy),) = found(call)
    assert what in given and fix in remedy


@pytest.mark.parametrize(
    "call",
    [
        "SFTConfig('o', max_length=3, packing=True, eval_strategy='no', output_dir='o', **more)",
        "Trainer(m, tokenizer=t)",  # the decorator accepts the keyword
        "OpenTrainer(m, anything=1)",
        "trl.MetaConfig(anything=1)",
        "trl.NewTrainer(anything=1)",
        "mine.SFTConfig(anything=1)",
        "SFTConfig = other\nSFTConfig(anything=1)",
        "class Own(S):\n    def __init__(self, **more): ...\nOwn(m, anything=1)",
        "def f(SFTConfig):\n    SFTConfig(anything=1)",
        "from mine import SFTConfig\nSFTConfig(anything=1)",  # the last of two imports with the same name
    ],
)
def test_known_or_undecidable_keywords_are_not_reported(call: str) -> None:
    assert found(call) == []


@pytest.mark.parametrize(
    "text",
    [
        "if version.parse(trl.__version__) >= v:\n    SFTConfig(packing=1)\nelse:\n    SFTConfig(gone=1)",
        "if 'gone' in inspect.signature(SFTConfig).parameters:\n    SFTConfig(gone=1)",
        "OLD = trl.__version__ < '1'\nif OLD:\n    SFTConfig(gone=1)",
        "try:\n    S(m, processing_class=t)\nexcept TypeError:\n    S(m, tokenizer=t)",
        "try:\n    S(m, tokenizer=t)\nexcept (TypeError, OSError):\n    S(m)",
        "with suppress(TypeError):\n    SFTConfig(gone=1)",
        "def make():\n    if NEW:\n        return S(m, processing_class=t)\n    return S(m, tokenizer=t)",
    ],
)
def test_call_for_another_release_is_not_reported(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("around", "severity"),
    [
        ("if __name__ == '__main__':", "fails"),
        ("def main():", "fails"),
        ("with started():", "fails"),
        ("if args.long:", "likely"),
        ("for one in runs:\n    if one.done:\n        continue", "likely"),
    ],
)
def test_conditional_call_is_reported_as_likely(around: str, severity: str) -> None:
    script = parse_script(f"{IMPORTS}{around}\n    SFTConfig(gone=1)", "train.py")
    assert isinstance(script, Script)
    (diagnostic,) = check_run(None, [script], {"trl": "1.16.0"}, signatures=Signatures(read))
    assert diagnostic.severity == severity


LOSS = """
    class Mine({}):
        def compute_loss(self, model, inputs{}): ...
        {}
"""


@pytest.mark.parametrize(
    ("base", "arguments", "more", "expected"),
    [
        ("Trainer", ", return_outputs=False", "", True),
        ("trl.SFTTrainer", ", return_outputs=False, n=None", "", True),
        ("Trainer", ", return_outputs=False, num_items_in_batch=None", "", False),
        ("Trainer", ", **kwargs", "", False),
        ("Trainer", "", "def training_step(self, *a): ...", False),
        ("MyTrainer", "", "", False),
    ],
)
def test_compute_loss_with_an_old_signature_is_reported(
    base: str, arguments: str, more: str, expected: bool
) -> None:
    text = LOSS.format(base, arguments, more)
    assert bool(found(text)) is expected
    assert found(text, transformers="4.45.2") == []


OLD_LOSS = "def compute_loss(self, model, inputs): ..."


@pytest.mark.parametrize(
    "text",
    [
        f"class B(Trainer):\n    def training_step(self, *a): ...\nclass C(B):\n    {OLD_LOSS}",
        f"class C(Trainer):\n    @sized\n    {OLD_LOSS}",
        f"@patched\nclass C(Trainer):\n    {OLD_LOSS}",
        f"class C(mine.Steps, Trainer):\n    {OLD_LOSS}",
        f"class C(Trainer):\n    {OLD_LOSS}\n    compute_loss = sized(compute_loss)",
        f"class C(Trainer):\n    {OLD_LOSS}\nC.training_step = step",
        f"class C(Trainer):\n    {OLD_LOSS}\nclass D(Trainer):\n"
        "    def compute_loss(self, model, inputs, num_items_in_batch=None): ...",
        f"if Version(transformers.__version__) < v:\n    class C(Trainer):\n        {OLD_LOSS}",
    ],
)
def test_compute_loss_that_other_code_may_call_is_not_reported(text: str) -> None:
    assert found(text) == []
    assert len(found(f"class C(Trainer):\n    {OLD_LOSS}")) == 1


@pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")
def test_arguments_of_installed_classes_are_found() -> None:
    signatures = Signatures(sources_of(None))
    config, trainer = signatures.taken("trl.SFTConfig"), signatures.taken("trl.SFTTrainer")
    assert config is not None and {"output_dir", "learning_rate", "packing", "max_length"} <= config
    assert trainer is not None and {"model", "args", "peft_config"} <= trainer and "self" not in trainer
