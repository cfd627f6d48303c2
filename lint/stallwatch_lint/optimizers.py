"""What DeepSpeed asserts of the optimizer and scheduler that the configuration names.

They are made by ``_configure_basic_optimizer`` and ``_scheduler_from_config`` (0.9.0 to 0.19.8,
``runtime/engine.py``) unless the script hands an optimizer over itself; hence "likely" at most.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from stallwatch_lint.diagnostic import Diagnostic, Words
from stallwatch_lint.dsconfig import DsConfig

_CONFIG_RULE = "deepspeed-config-invalid"
_OPTIMIZER_RULE = "deepspeed-client-optimizer-refused"
#: what ZeRO has been tried with (``ZERO_SUPPORTED_OPTIMIZERS`` in ``runtime/zero/utils.py``), as the names of
#: the configuration; all others need ``zero_allow_untested_optimizer``. Lion since 0.11, Muon since 0.17.
_TRIED = {"adam", "adamw", "adagrad", "lion", "muon"}
_ONE_BIT = {"onebitadam": "1bit-Adam", "zerooneadam": "0/1 Adam", "onebitlamb": "1bit-Lamb"}
#: ``DEEPSPEED_OPTIMIZERS`` of DeepSpeed 0.19.8 (``runtime/config.py``), whose case does not matter
_OWN = {"adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon"} | _ONE_BIT.keys()
#: the classes of ``torch.optim`` (torch 2.13.0, ``optim/__init__.py``), which DeepSpeed takes for other names
_OF_TORCH = (
    "Adafactor",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "AdamW",
    "ASGD",
    "LBFGS",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SparseAdam",
)
_WRITTEN = (
    *_OF_TORCH,
    "Lamb",
    "Lion",
    "MuAdam",
    "MuAdamW",
    "MuSGD",
    "OneBitAdam",
    "ZeroOneAdam",
    "OneBitLamb",
)
#: ``runtime/lr_schedules.py``
_SCHEDULERS = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
#: the classes of ``torch.optim.lr_scheduler`` (torch 2.13.0, ``optim/lr_scheduler.py``), which go as well
_SCHEDULERS_OF_TORCH = (
    "LambdaLR",
    "MultiplicativeLR",
    "StepLR",
    "MultiStepLR",
    "ConstantLR",
    "LinearLR",
    "ExponentialLR",
    "SequentialLR",
    "CosineAnnealingLR",
    "ChainedScheduler",
    "ReduceLROnPlateau",
    "CyclicLR",
    "CosineAnnealingWarmRestarts",
    "OneCycleLR",
    "PolynomialLR",
    "LRScheduler",
    "_LRScheduler",
)


def check_optimizer(config: DsConfig) -> Iterator[Diagnostic]:
    """The optimizer's name and parameters, and the scheduler's name."""
    name = config.get("optimizer", "type")
    if "max_grad_norm" in config.section("optimizer", "params"):
        yield Diagnostic(
            "optimizer-max-grad-norm",
            "likely",
            Words("max_grad_norm is no parameter of the optimizer", "max_grad_norm 不是优化器的参数"),
            Words(
                "DeepSpeed raises a ValueError for it when it makes the optimizer.",
                "DeepSpeed 在创建优化器时会为它抛出 ValueError。",
            ),
            Words(
                'Write "gradient_clipping" at the top level instead.', '改为在最外层写 "gradient_clipping"。'
            ),
            _CONFIG_RULE,
            config.file,
            config.line("optimizer", "params", "max_grad_norm"),
        )
    if isinstance(name, str) and name.lower() not in _OWN and name not in _OF_TORCH:
        yield _no_optimizer(config, name)
    elif isinstance(name, str) and config.stage:
        yield from _with_zero(config, name)
    scheduler = config.get("scheduler", "type")
    if isinstance(scheduler, str) and scheduler not in (*_SCHEDULERS, *_SCHEDULERS_OF_TORCH):
        yield _no_scheduler(config, scheduler)


def _no_optimizer(config: DsConfig, name: str) -> Diagnostic:
    near = _nearest(name, _WRITTEN)
    return Diagnostic(
        "optimizer-unknown",
        "likely",
        Words(
            f"Neither DeepSpeed nor torch has an optimizer {name}", f"DeepSpeed 和 torch 都没有优化器 {name}"
        ),
        Words(
            "A name that is none of DeepSpeed's own is looked up in torch.optim: an AttributeError.",
            "不属于 DeepSpeed 自带的名称会到 torch.optim 里查找，于是抛出 AttributeError。",
        ),
        Words(f'Did you mean "{near}"?', f'是否想写 "{near}"？')
        if near
        else Words(
            'Write "AdamW" or another class of torch.optim, or hand the optimizer to deepspeed.initialize.',
            '写 "AdamW" 或 torch.optim 的其他类，或者把优化器直接传给 deepspeed.initialize。',
        ),
        _CONFIG_RULE,
        config.file,
        config.line("optimizer", "type"),
    )


def _no_scheduler(config: DsConfig, name: str) -> Diagnostic:
    near = _nearest(name, (*_SCHEDULERS, *_SCHEDULERS_OF_TORCH))
    own = ", ".join(_SCHEDULERS)
    return Diagnostic(
        "scheduler-unknown",
        "likely",
        Words(
            f"Neither DeepSpeed nor torch has a scheduler {name}", f"DeepSpeed 和 torch 都没有调度器 {name}"
        ),
        Words(
            "Names are case-sensitive; an unknown one ends in an assertion.",
            "名称区分大小写；未知名称会触发断言。",
        ),
        Words(f"Write {near}.", f"写 {near}。")
        if near
        else Words(
            f"Write one of {own}, or a class of torch.optim.lr_scheduler such as CosineAnnealingLR.",
            f"写 {own} 之一，或 torch.optim.lr_scheduler 的类，例如 CosineAnnealingLR。",
        ),
        _CONFIG_RULE,
        config.file,
        config.line("scheduler", "type"),
    )


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; case tells nothing about that."""
    written = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), written, n=1, cutoff=0.8)
    return written[found[0]] if found else None


def _with_zero(config: DsConfig, name: str) -> Iterator[Diagnostic]:
    line = config.line("optimizer", "type")
    if name.lower() in _ONE_BIT:
        yield Diagnostic(
            "one-bit-with-zero",
            "likely",
            Words(
                f"{name} does not go with ZeRO stage {config.stage}",
                f"{name} 不能与 ZeRO stage {config.stage} 同用",
            ),
            Words(
                f"DeepSpeed asserts: {_ONE_BIT[name.lower()]} is not compatible with ZeRO.",
                f"DeepSpeed 断言：{_ONE_BIT[name.lower()]} 与 ZeRO 不兼容。",
            ),
            Words('Take "AdamW", or "stage": 0.', '改用 "AdamW"，或设 "stage": 0。'),
            _OPTIMIZER_RULE,
            config.file,
            line,
        )
    elif name.lower() not in _TRIED and config.get("zero_allow_untested_optimizer") is not True:
        yield Diagnostic(
            "optimizer-untested",
            "likely",
            Words(f"ZeRO refuses the optimizer {name}", f"ZeRO 拒绝优化器 {name}"),
            Words(
                "DeepSpeed has not been tried with it under ZeRO and asserts that you allow it.",
                "DeepSpeed 未在 ZeRO 下测试过它，要求显式允许。",
            ),
            Words(
                'Add "zero_allow_untested_optimizer": true.', '加上 "zero_allow_untested_optimizer": true。'
            ),
            _OPTIMIZER_RULE,
            config.file,
            line,
        )
