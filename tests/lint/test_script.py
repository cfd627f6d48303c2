"""Scripts that will fail, and similar ones that are harmless."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent

import pytest

from stallwatch_lint.check_run import check_run
from stallwatch_lint.diagnostic import Diagnostic
from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.script import Script, parse_script

ZERO3: dict[str, dict[str, object]] = {
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}
}
UNGATHERED = {"zero_optimization": {"stage": 3}}


def found(
    text: str, values: Mapping[str, object] = ZERO3, **versions: str
) -> list[tuple[str, str, int | None]]:
    script = parse_script(dedent(text), "train.py")
    assert isinstance(script, Script)
    diagnostics = check_run(DsConfig(values, "ds.json"), [script], versions)
    return [
        (diagnostic.severity, diagnostic.check, diagnostic.line)
        for diagnostic in diagnostics
        if diagnostic.file == "train.py"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "loss = loss + 0.0 * sum(p.sum() for p in model.parameters())",
        "loss += 0 * sum([p.flatten()[0] for _, p in model.named_parameters()])",
        "extra = sum(p.mean() for p in unused.parameters())\nloss = loss + 0.0 * extra",
        "extra = 0\nfor p in unused.parameters():\n    extra += 0.0 * p.sum()\nloss = loss + extra",
        "extra = 0\nfor p in unused.parameters():\n    extra = extra + p.sum()\nloss = loss + 0 * extra",
        "for p in model.parameters(): loss = loss + p.sum()*0",
        "total = ce + 0.0 * sum(p.sum() for p in model.parameters())",
        "engine.backward(out + torch.stack([p.sum() for p in unused.parameters()]).sum())",
        "total = ce + 1e-9 * sum(p.sum() for p in unused.parameters())\ntotal.backward()",
        "def f():\n    return out + sum(p.sum() for p in unused.parameters()) * 0",
        "def touch(m):\n    return sum(p.sum() for p in m.parameters())\nloss = loss + 0 * touch(unused)",
        "class C:\n    def touch(self):\n        return sum(p.sum() for p in self.net.parameters())\n"
        "    def step(self):\n        loss = loss + 0 * self.touch()",
        "for p in model.parameters():\n    if p.requires_grad:\n        loss += 0 * p.sum()",
        "for _, p in model.named_parameters(): out.loss = 0.0 * p.mean() + out.loss",
    ],
)
def test_dummy_loss_over_partitioned_parameters_is_reported(text: str) -> None:
    sharp = {"zero_optimization": {**ZERO3["zero_optimization"], "stage3_param_persistence_threshold": 0}}
    ((severity, check, _),) = found(text, sharp)
    assert (severity, check) == ("fails", "dummy-loss")
    ((severity, _, _),) = found(text)  # small parameters are not partitioned
    assert severity == ("fails" if "in model." in text else "likely")
    assert found(text, {"zero_optimization": {"stage": 2}}) == []


@pytest.mark.parametrize(
    "text",
    [
        "count = sum(p.numel() for p in model.parameters())",
        "loss_norm = sum(p.grad.norm() for p in model.parameters())",
        "norm = sum(p.norm() for p in model.parameters())\nprint(norm)",
        "loss = model(x).sum() + sum(t.sum() for t in terms)",
        "with deepspeed.zero.GatheredParameters(ps):\n    loss = sum(p.sum() for p in m.parameters())",
        "loss = loss + 0.0 * sum(p.detach().sum() for p in model.parameters())",
        "for p in model.parameters(): loss = loss + p.detach().sum()",
        "for p in model.parameters(): count = count + p.numel()\nloss = loss / count",
        "for p in model.parameters(): norm = p.norm()",
        "for batch in data: loss = loss + batch.sum()",
        "weight = 0 * sum(t.sum() for t in terms)",
        "def touch(m):\n    return sum(p.sum() for p in m.parameters())\nprint(touch(model))",
        "def norm(m):\n    return sum(p.norm() for p in m.parameters())\nloss = out.mean() + out.norm()",
    ],
)
def test_other_sums_are_not_reported(text: str) -> None:
    assert found(text) == []


def test_dummy_loss_over_the_running_module_is_not_reported() -> None:
    text = """
    class Leaf:
        def forward(self, x):
            loss = x + 0.0 * sum(p.sum() for p in self.parameters())
            return loss
    """
    assert found(text) == [("likely", "dummy-loss", 4)]


def test_initialize_without_a_model_is_reported() -> None:
    assert found("import deepspeed\ndeepspeed.initialize(model=None, config=c)")[0][:2] == (
        "fails",
        "initialize-without-model",
    )
    assert found("import deepspeed\ne, *_ = deepspeed.initialize(args, model)") == []
    assert found("import deepspeed\ne, *_ = deepspeed.initialize(**everything)") == []


EVAL = """
import deepspeed
engine, *_ = deepspeed.initialize(model=model, config=c)
{}
for batch in data:
    loss = engine(batch)
    engine.backward(loss)
    engine.step()
"""


def test_training_in_evaluation_mode_is_reported() -> None:
    assert found(EVAL.format("model.eval()"), deepspeed="0.15.3") == [("fails", "trained-in-eval-mode", 4)]
    assert found(EVAL.format("model.eval()"), deepspeed="0.15.4") == [("advice", "trained-in-eval-mode", 4)]
    assert found(EVAL.format("model.eval(); evaluate(); engine.train()"), deepspeed="0.15.3") == []
    assert found(EVAL.format("reference.eval()"), deepspeed="0.15.3") == []


def test_online_dpo_without_a_reference_model_is_reported() -> None:
    text = "from trl import OnlineDPOTrainer\nt = OnlineDPOTrainer(model=m, peft_config={})"
    assert found(text.format("LoraConfig()"), trl="0.12.2") == [("fails", "online-dpo-without-reference", 2)]
    assert found(text.format("get_peft_config(a)"), trl="0.12.2")[0][0] == "likely"
    assert found(text.format("LoraConfig(), ref_model=r"), trl="0.12.2") == []
    either = "peft = LoraConfig(r=8)\nif big: peft = LoraConfig(r=16)\n" + text.format("peft")
    assert found(either, trl="0.12.2") == [("fails", "online-dpo-without-reference", 4)]
    assert found(text.format("LoraConfig()"), trl="0.13.0") == []
    assert found(text.format("LoraConfig()")) == []


def test_trainer_that_cannot_save_is_reported() -> None:
    text = "from trl import PPOTrainer\nt = PPOTrainer(args=a)"
    for trl in ("0.12.2", "0.19.1", "1.12.0"):
        assert found(text, trl=trl) == [("likely", "ppo-save-unwrapped", 2)]
    assert found(text, trl="1.13.0") == []
    assert found(text, trl="0.11.4") == []  # a class without save_model
    assert found(text.replace("PPO", "PPOv2"), trl="0.11.4") == [("likely", "ppo-save-unwrapped", 2)]
    assert found(text, {"zero_optimization": {"stage": 2}}, trl="0.12.2") == []


def test_save_without_gathering_is_reported() -> None:
    text = "from transformers import Trainer\ntrainer = Trainer()\ntrainer.save_model('out')"
    assert found(text, UNGATHERED) == [("likely", "gather-on-save", 3)]
    assert found(text) == []
    assert found("state = accelerator.get_state_dict(model)", UNGATHERED) == [("fails", "gather-on-save", 1)]


def test_torch_save_of_partitioned_weights_is_reported() -> None:
    text = "import deepspeed\nengine, *_ = deepspeed.initialize(model=model)\n{}"
    assert found(text.format("torch.save(model.state_dict(), f)")) == [
        ("likely", "saves-partitioned-weights", 3)
    ]
    assert found(text.format("before = model.state_dict()")) == []
    assert found(text.format("tokenizer.save_pretrained(out)")) == []
    assert found(text.format("model.save_pretrained(out, state_dict=whole)")) == []


STARTED = "import deepspeed\nengine, *_ = deepspeed.initialize(model=net)\n{}"
PREPARED = "engine, opt = accelerator.prepare(model, opt)\n{}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PREPARED.format("state = accelerator.get_state_dict(engine.policy)"), 2),
        (PREPARED.format("state = accelerator.get_state_dict(engine.policy.backbone)"), 2),
        (PREPARED.format("self.accelerator.get_state_dict(accelerator.unwrap_model(engine))"), 2),
        (PREPARED.format("plain = accelerator.unwrap_model(engine)\naccelerator.get_state_dict(plain)"), 3),
        (STARTED.format("engine.module.zero_gather_16bit_weights_on_model_save()"), 3),
        (STARTED.format("if net.zero_gather_16bit_weights_on_model_save(): pass"), 3),
        (STARTED.format("m = engine.module\nm._zero3_consolidated_16bit_state_dict()"), 4),
        (STARTED.format("accelerator.get_state_dict(engine.module)"), 3),
        (
            "class Saver(Trainer):\n"
            "    def save_model(self, out=None, _internal_call=False):\n"
            "        both, engine = self.model, self.deepspeed\n"
            "        self.model = self.deepspeed = both.policy\n"
            "        super().save_model(out, _internal_call)\n"
            "        self.model, self.deepspeed = both, engine\n",
            2,
        ),
    ],
)
def test_save_of_a_wrapped_model_is_reported(text: str, line: int) -> None:
    assert found(text) == [("likely", "saves-past-the-engine", line)]
    assert found(text, {"zero_optimization": {"stage": 2}}) == []


@pytest.mark.parametrize(
    "text",
    [
        PREPARED.format("state = accelerator.get_state_dict(engine)"),
        PREPARED.format("other.get_state_dict(engine.policy)"),
        "state = accelerator.get_state_dict(self.model)",
        STARTED.format("engine.zero_gather_16bit_weights_on_model_save()"),
        STARTED.format("net = engine\nengine._zero3_consolidated_16bit_state_dict()"),
        STARTED.format(
            "net, *_ = deepspeed.initialize(model=net)\nnet._zero3_consolidated_16bit_state_dict()"
        ),
        STARTED.format("def save(net):\n    net.zero_gather_16bit_weights_on_model_save()"),
        "import deepspeed\ndef build():\n    net = make()\n    made, *_ = deepspeed.initialize(model=net)\n"
        "    return made\nnet = build()\nnet.zero_gather_16bit_weights_on_model_save()",
        "class Saver(Trainer):\n    def save_model(self, out=None):\n        super().save_model(out)",
        "class Saver(Trainer):\n    def save_model(self, out=None):\n        self.model = unwrap(self.model)",
    ],
)
def test_valid_saves_are_not_reported(text: str) -> None:
    assert found(text) == []


def test_incompatible_loading_arguments_are_reported() -> None:
    text = "import transformers\nm = AutoModelForCausalLM.from_pretrained(n, device_map={})"
    assert found(text.format("'auto'")) == [("likely", "device-map-with-zero3", 2)]
    assert found(text.format("None")) == []
    both = "a = TrainingArguments(save_only_model=True, load_best_model_at_end=True)"
    assert found(both) == [("fails", "best-model-without-optimizer", 1)]


def test_invalid_stage_does_not_hide_other_findings() -> None:
    text = "import transformers\nm = AutoModelForCausalLM.from_pretrained(n, device_map='auto')"
    stage = {"zero_optimization": {"stage": 4}}
    assert found(text, stage) == [("likely", "device-map-with-zero3", 2)]
    loop = "for p in model.parameters(): loss = loss + p.sum()*0"
    assert found(loop, stage) == [("fails", "dummy-loss", 1)]
    assert found(f"{text}\n{loop}", {"zero_optimization": {"stage": 2}}) == []


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("eval_strategy='no', save_strategy='steps'", True),
        ("eval_strategy=IntervalStrategy.EPOCH", True),  # saving is by steps by default
        ("", True),
        ("evaluation_strategy='epoch', save_strategy='epoch'", False),
        ("evaluation_strategy='epoch', save_strategy='steps'", True),
        ("eval_strategy='steps', eval_steps=100, save_steps=250", True),
        ("eval_strategy='steps', eval_steps=100", False),
        ("eval_strategy='steps', logging_steps=30", True),  # evaluation uses logging_steps, too
        ("eval_strategy='steps', eval_steps=0.3, save_steps=0.4", False),  # fractions are not compared
        ("save_strategy='best'", False),
        ("eval_strategy=chosen", False),
        ("**more", False),
    ],
)
def test_load_best_model_requires_matching_strategies(arguments: str, given: bool) -> None:
    text = "from transformers import TrainingArguments\na = {}('out', load_best_model_at_end={}, {})"
    expected = [("fails", "best-model-strategies", 2)] if given else []
    assert found(text.format("TrainingArguments", True, arguments), {}) == expected
    assert found(text.format("TrainingArguments", False, arguments), {}) == []


def test_strategies_of_subclasses_have_their_own_defaults() -> None:
    text = "import trl\na = SFTConfig(load_best_model_at_end=True, {})"
    assert found(text.format("eval_strategy='epoch'"), {}) == []
    both = text.format("eval_strategy='epoch', save_strategy='steps'")
    assert found(both, {}) == [("fails", "best-model-strategies", 2)]


@pytest.mark.parametrize(
    ("call", "transformers", "severity"),
    [
        ("Trainer(model, evaluation_strategy='no')", "5.23.0", "fails"),
        ("Trainer(model, evaluation_strategy='no')", "4.48.3", "fails"),
        ("Trainer(model, evaluation_strategy='no')", "99.0", "likely"),
        ("T(model, num_train_epochs=3)", "5.23.0", "fails"),
        ("transformers.Seq2SeqTrainer(model, learning_rate=1)", "5.23.0", "fails"),
        ("Trainer(model, args=a, callbacks=[c], **more)", "5.23.0", None),
        ("Trainer(model, tokenizer=t)", "5.0.0", "fails"),
        ("Trainer(model, tokenizer=t)", "4.57.6", None),
        ("TrainingArguments('out', evaluation_strategy='no')", "5.23.0", "fails"),
        ("TrainingArguments('out', evaluation_strategy='no')", "4.50.0", "likely"),
        ("TrainingArguments('out', evaluation_strategy='no')", "4.48.3", None),
        ("MyTrainer(model, evaluation_strategy='no')", "5.23.0", None),
        ("class Trainer: pass\nTrainer(model, evaluation_strategy='no')", "5.23.0", None),
    ],
)
def test_unknown_trainer_arguments_are_reported(call: str, transformers: str, severity: str | None) -> None:
    imports = "import transformers; from transformers import Trainer, TrainingArguments, Trainer as T\n"
    expected = [(severity, "trainer-argument-unknown", 2)] if severity else []
    assert found(imports + call, {}, transformers=transformers) == expected


def test_mixture_of_experts_under_zero3_gets_advice() -> None:
    text = "m = load('mistralai/Mixtral-8x7B-v0.1')\n{}\nloss.backward()"
    assert found(text.format("")) == [("advice", "experts-under-zero3", 1)]
    assert found(text.format(""), deepspeed="0.18.0") == []  # this version sets leaf modules itself
    assert found(text.format("set_z3_leaf_modules(m, [Block])")) == []


def test_auto_values_require_a_trainer() -> None:
    config = DsConfig({"train_micro_batch_size_per_gpu": "auto"}, "ds.json")

    def checked(text: str) -> list[str]:
        script = parse_script(text, "train.py")
        assert isinstance(script, Script)
        return [item.check for item in check_run(config, [script])]

    assert checked("import deepspeed\ndeepspeed.initialize(model=m)") == ["auto-without-trainer"]
    assert checked("import deepspeed, accelerate\ndeepspeed.initialize(model=m)") == []


@pytest.mark.parametrize(("text", "line"), [("x = (\n", 1), ("x = 1\nreturn x\n", 2), ("print 'x'", 1)])
def test_syntax_error_is_reported_with_its_line(text: str, line: int) -> None:
    diagnostic = parse_script(text, "train.py")
    assert isinstance(diagnostic, Diagnostic) and (diagnostic.severity, diagnostic.line) == ("fails", line)


ARGUMENTS = "from transformers import TrainingArguments\na = TrainingArguments('out', {})"


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("fp16=True, bf16=True", {}, [("fails", "fp16-and-bf16")]),
        ("fp16=half, bf16=True", {}, []),
        (
            "per_device_train_batch_size=2, deepspeed='conf/ds.json'",
            {"train_micro_batch_size_per_gpu": 4},
            "fails",
        ),
        ("per_device_train_batch_size=2, deepspeed=config", {"train_micro_batch_size_per_gpu": 4}, "likely"),
        ("per_device_train_batch_size=2, deepspeed='other.json'", {"train_micro_batch_size_per_gpu": 4}, []),
        ("per_device_train_batch_size=size", {"train_micro_batch_size_per_gpu": 4}, []),
        ("per_device_train_batch_size=2", {"train_micro_batch_size_per_gpu": "auto"}, []),
        (
            "per_device_train_batch_size=2, auto_find_batch_size=True",
            {"train_micro_batch_size_per_gpu": 4},
            [],
        ),
        ("deepspeed='ds.json'", {"gradient_accumulation_steps": 4}, "fails"),  # the default is 1
        ("**more", {"gradient_accumulation_steps": 4}, []),
        ("deepspeed='ds.json'", {"gradient_accumulation_steps": 1, "gradient_clipping": 1}, []),
        ("learning_rate=1e-5", {"optimizer": {"params": {"lr": 1e-4}}}, "likely"),
        ("learning_rate=1e-4", {"optimizer": {"params": {"lr": 1e-4, "betas": "auto"}}}, []),
        ("bf16=True", {"bf16": {"enabled": False}}, "likely"),
        ("bf16=True", {"bf16": {"enabled": True}, "fp16": {"enabled": "auto"}}, []),
    ],
)
def test_training_arguments_that_differ_from_the_configuration_are_reported(
    text: str, values: Mapping[str, object], expected: object
) -> None:
    if isinstance(expected, str):
        expected = [(expected, "arguments-differ-from-config")]
    assert [item[:2] for item in found(ARGUMENTS.format(text), values)] == expected


def test_argument_defaults_depend_on_the_class() -> None:
    text = "from trl import SFTConfig\nfrom peft import LoraConfig\na = SFTConfig({})\nb = LoraConfig()"
    values = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"params": {"lr": 1e-4}}}
    assert found(text.format("deepspeed='ds.json'"), values) == []
    differs = [("fails", "arguments-differ-from-config", 3)]
    assert found(text.format("deepspeed='ds.json', per_device_train_batch_size=2"), values) == differs
