"""Arguments that the installed classes of transformers and TRL do not take, and losses that they cannot call.

``num_items_in_batch`` was read in transformers 4.46.0 to 5.23.0 (``trainer.py``, ``training_step``).
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping

from packaging.version import Version

from stallwatch_lint.conditions import conditions_of
from stallwatch_lint.diagnostic import Diagnostic, Severity, diagnostic
from stallwatch_lint.script import Call, Script, dotted, last_name
from stallwatch_lint.signatures import Signatures
from stallwatch_lint.trainer_facts import KNOWN
from stallwatch_lint.versions import version_of
from stallwatch_rules.messages import Message, message

_ENDINGS = {"transformers": ("Trainer", "TrainingArguments"), "trl": ("Trainer", "Config")}
_SEVERITIES: dict[str, Severity] = {"always": "fails", "sometimes": "likely"}
_STEPS = ("compute_loss", "training_step")


def called_class(script: Script, call: Call) -> str | None:
    """``trl.SFTTrainer`` for a call of it, or of a class of the file that only inherits its ``__init__``."""
    return _origin(script, call.name, set())


def check_class_keywords(
    script: Script, signatures: Signatures | None, versions: Mapping[str, str]
) -> Iterator[Diagnostic]:
    """Keywords of calls, held against the source of the classes that are called.

    Nothing is said of a call that the script makes only where another release is installed: below a test or
    an exception that tells, or beside a call of the same class that the installed release takes.
    """
    if signatures is None:
        return
    calls = [(call, full) for call in script.calls if (full := called_class(script, call))]
    conditions = conditions_of(script.tree)
    for call, full in calls:
        taken = signatures.taken(full)
        unknown = [one for one in call.node.keywords if taken is not None and one.arg not in {None, *taken}]
        reached = conditions.of(call.node) if unknown else "asked"
        if taken is None or reached == "asked":
            continue
        others = [other.node.keywords for other, its in calls if its == full and other is not call]
        beside = {one.arg for keywords in others for one in keywords}
        for keyword in unknown:
            name = keyword.arg or ""
            if {one.new for one in KNOWN.changed if one.old == name and one.new} & beside:
                continue  # both names are written: one is for older releases
            package = full.partition(".")[0]
            yield diagnostic(
                "trainer-argument-unknown",
                (script.file, keyword.value.lineno),
                severity=_SEVERITIES[reached],
                fix=_fix(full, name, taken, signatures),
                name=full.rpartition(".")[2],
                package=package,
                release=versions.get(package, ""),
                keyword=name,
            )


def check_compute_loss(script: Script, versions: Mapping[str, str]) -> Iterator[Diagnostic]:
    """A Trainer's own ``compute_loss`` that does not take what each step calls it with."""
    transformers = version_of(versions, "transformers")
    if transformers is None or transformers < Version("4.46.0") or _replaced(script):
        return
    losses = [
        (one, loss) for one in script.classes if (loss := _methods(one).get("compute_loss")) is not None
    ]
    if any(_takes(loss) and loss.args.kwarg is None for _, loss in losses):
        return  # both are written: one is for older releases
    for node, loss in losses:
        reached = conditions_of(script.tree).of(loss)
        if reached == "asked" or _takes(loss) or loss.decorator_list or not _is_trainer(script, node):
            continue
        place, severity = (script.file, loss.lineno), _SEVERITIES[reached]
        yield diagnostic("compute-loss-signature", place, severity=severity, release=str(transformers))


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}


def _takes(loss: ast.FunctionDef) -> bool:
    named = {one.arg for one in [*loss.args.args, *loss.args.kwonlyargs]}
    return loss.args.kwarg is not None or "num_items_in_batch" in named


def _replaced(script: Script) -> bool:
    """Whether the file may call ``compute_loss`` in a way of its own, or put another function there."""
    stored = (node for node in script.nodes if isinstance(node, (ast.Name, ast.Attribute)))
    return any("training_step" in _methods(one) for one in script.classes) or any(
        isinstance(node.ctx, ast.Store) and last_name(node) in _STEPS for node in stored
    )


def _is_trainer(script: Script, node: ast.ClassDef) -> bool:
    """Whether a class of transformers or TRL makes the steps of this one, with none unknown before it."""
    own = {one.name: one for one in script.classes}
    for base in () if node.decorator_list else node.bases:
        name = dotted(base)
        if _origin(script, name, {node.name}, inherited=False):
            return True
        if name not in own or own[name].bases:
            return False  # a mixin of elsewhere
    return False


def _origin(script: Script, name: str, seen: set[str], *, inherited: bool = True) -> str | None:
    """The class of transformers or TRL behind a name; with `inherited`, where its ``__init__`` counts."""
    named = [one for one in script.classes if one.name == name]
    if named:
        own = named[0]
        if len(named) > 1 or name in seen or (inherited and not _inherits(own)) or not own.bases:
            return None
        return _origin(script, dotted(own.bases[0]), {*seen, name}, inherited=inherited)
    if name.partition(".")[0] in script.stored:
        return None
    full = script.full(name)
    endings = _ENDINGS.get(full.partition(".")[0], ())
    return full if "." in full and endings and full.endswith(endings) else None


def _inherits(node: ast.ClassDef) -> bool:
    """Whether making one of it calls its first base's ``__init__`` with the same arguments."""
    return not (node.decorator_list or node.keywords or _methods(node).keys() & {"__init__", "__new__"})


def _fix(full: str, keyword: str, taken: frozenset[str], signatures: Signatures) -> Message:
    name = full.rpartition(".")[2]
    for one in KNOWN.changed:
        if name.endswith(one.ending) and keyword == one.old:
            if not one.new:
                return message("lint.argument-gone", since=one.since)
            if one.new in taken or "(" in one.new:
                return message("lint.argument-renamed", new=one.new, since=one.since)
    arguments = _arguments_of(full, name)
    if arguments and keyword in (signatures.taken(arguments) or ()):
        return message("lint.argument-of-settings", there=arguments.rpartition(".")[2])
    near = difflib.get_close_matches(keyword, taken, n=1)
    return message("lint.argument-near", near=near[0]) if near else message("lint.take-it-out")


def _arguments_of(full: str, name: str) -> str:
    """The class of a trainer's settings: ``trl.SFTConfig`` of ``trl.SFTTrainer``."""
    if not name.endswith("Trainer"):
        return ""
    package = full.partition(".")[0]
    return f"{package}.{name.removesuffix('Trainer')}{'Config' if package == 'trl' else 'TrainingArguments'}"


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
        for keyword in call.node.keywords if kind in KNOWN.renamed else ():
            if keyword.arg is None:
                continue
            renamed = KNOWN.renamed[kind]
            severity: Severity
            if keyword.arg == renamed.old:
                if version is None or version <= Version(renamed.last):
                    continue
                severity = "fails" if version >= Version(renamed.first) else "likely"
                fix = message("lint.argument-renamed-to", new=renamed.new)
            elif kind == "Trainer" and keyword.arg not in KNOWN.taken:
                newer = version is not None and version > Version(KNOWN.last_known)
                severity = "likely" if newer else "fails"
                name = "eval_strategy" if keyword.arg == "evaluation_strategy" else keyword.arg
                fix = message("lint.argument-elsewhere", name=name)
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


def _imported(script: Script) -> Mapping[str, str]:
    """The classes of transformers that the script has: their names here, and there."""
    names = {
        alias.asname or alias.name: alias.name
        for node in script.nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "transformers"
        for alias in node.names
    }
    made = {
        node.name if isinstance(node, ast.ClassDef) else node.id
        for node in script.nodes
        if isinstance(node, ast.ClassDef) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    whole = {name for call in script.calls if (name := call.name).startswith("transformers.")}
    direct = {name: name.removeprefix("transformers.") for name in whole}
    return {here: name for here, name in names.items() if here not in made} | direct
