"""Arguments that transformers' own trainers and training arguments do not take."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from packaging.version import Version

from stallwatch_lint.class_keywords import called_class
from stallwatch_lint.diagnostic import Diagnostic, Severity, diagnostic
from stallwatch_lint.script import Script
from stallwatch_lint.signatures import Signatures
from stallwatch_lint.versions import version_of
from stallwatch_rules.messages import Message, message

LAST_KNOWN = Version("5.23.0")  #: of newer releases it is not known what they take
#: of ``Trainer.__init__`` (``trainer.py``) in 4.48.3 and 5.23.0; that of ``Seq2SeqTrainer`` takes no others
TAKEN = frozenset(
    {
        "model",
        "args",
        "data_collator",
        "train_dataset",
        "eval_dataset",
        "processing_class",
        "model_init",
        "compute_loss_func",
        "compute_metrics",
        "callbacks",
        "optimizers",
        "optimizer_cls_and_kwargs",
        "preprocess_logits_for_metrics",
        "tokenizer",  # to which RENAMED is an exception
    }
)
#: by class: the argument, its name since, the last release read that takes the old one, the first that does
#: not (``trainer.py``, ``training_args.py``)
RENAMED = {
    "Trainer": ("tokenizer", "processing_class", Version("4.57.6"), Version("5.0.0")),
    "TrainingArguments": ("evaluation_strategy", "eval_strategy", Version("4.48.3"), Version("4.57.6")),
}


def check_trainer_keywords(
    script: Script, versions: Mapping[str, str], signatures: Signatures | None = None
) -> Iterator[Diagnostic]:
    """``Trainer(evaluation_strategy=…)``: settings belong into the training arguments, under today's names.

    Only transformers' own classes, and where their source cannot be read (``class_keywords``).
    """
    version = version_of(versions, "transformers")
    own = _imported(script)
    for call in script.calls:
        full = called_class(script, call) if signatures is not None else None
        if full and signatures is not None and signatures.taken(full) is not None:
            continue
        kind = own.get(call.name, "").removeprefix("Seq2Seq")
        for keyword in call.node.keywords if kind in RENAMED else ():
            if keyword.arg is None:
                continue
            old, new, last, first = RENAMED[kind]
            severity: Severity
            if keyword.arg == old:
                if version is None or version <= last:
                    continue
                severity = "fails" if version >= first else "likely"
                fix = message("lint.argument-renamed-to", new=new)
            elif kind == "Trainer" and keyword.arg not in TAKEN:
                severity = "likely" if version is not None and version > LAST_KNOWN else "fails"
                fix = _elsewhere(keyword.arg)
            else:
                continue
            place = (script.file, keyword.value.lineno)
            yield diagnostic(
                "trainer-argument-unknown-here",
                place,
                severity=severity,
                fix=fix,
                called=call.last,
                keyword=keyword.arg,
            )


def _elsewhere(keyword: str) -> Message:
    name = "eval_strategy" if keyword == "evaluation_strategy" else keyword
    return message("lint.argument-elsewhere", name=name)


def _imported(script: Script) -> Mapping[str, str]:
    """The classes of transformers that the script has: their names here, and there."""
    names = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(script.tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "transformers"
        for alias in node.names
    }
    made = {
        node.name if isinstance(node, ast.ClassDef) else node.id
        for node in ast.walk(script.tree)
        if isinstance(node, ast.ClassDef) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    whole = {name for call in script.calls if (name := call.name).startswith("transformers.")}
    direct = {name: name.removeprefix("transformers.") for name in whole}
    return {here: name for here, name in names.items() if here not in made} | direct
