"""Find arguments that transformers and TRL reject, and ``compute_loss`` methods that a Trainer cannot call.

In transformers 4.46.0 to 5.23.0, ``training_step`` (``trainer.py``) passes the argument
``num_items_in_batch`` to ``compute_loss``.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from packaging.version import Version

from stallwatch_lint.conditions import conditions_of
from stallwatch_lint.diagnostic import Diagnostic, Severity, diagnostic
from stallwatch_lint.facts import TRAINERS
from stallwatch_lint.run import Run
from stallwatch_lint.script import Call, Script, dotted, is_own, last_name
from stallwatch_rules.messages import Message, message

_ENDINGS = {"transformers": ("Trainer", "TrainingArguments"), "trl": ("Trainer", "Config")}
_SEVERITIES: dict[str, Severity] = {"always": "fails", "sometimes": "likely"}
_STEPS = ("compute_loss", "training_step")


def check_keywords(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find keyword arguments that the called transformers and TRL classes do not accept.

    The arguments are compared with the source of these classes. If the source cannot be read, the arguments
    are compared with a table of changed arguments.
    """
    classes = {id(call.node): _origin(script, call.name) for call in script.calls} if run.signatures else {}
    for call in script.calls:
        full = classes.get(id(call.node))
        taken = run.signatures.taken(full) if run.signatures is not None and full is not None else None
        if full is None or taken is None:
            yield from _not_in_table(script, call, run)
        else:
            others = [
                other for other in script.calls if classes[id(other.node)] == full and other is not call
            ]
            yield from _not_taken(script, call, full, taken, others, run)


def _not_taken(
    script: Script, call: Call, full: str, taken: frozenset[str], others: list[Call], run: Run
) -> Iterator[Diagnostic]:
    """Yield diagnostics for the keyword arguments of a call that the installed class does not accept.

    Skip a call that might run only with a different release of the package. A call might do so if it depends
    on a check of the release or on an exception that a different release raises. Also skip the old name of a
    renamed argument if another call to the same class (in `others`) passes the new name.
    """
    unknown = [keyword for keyword in call.node.keywords if keyword.arg not in {None, *taken}]
    reached = conditions_of(script.tree).of(call.node) if unknown else "by-version"
    if reached == "by-version":
        return
    beside = {keyword.arg for other in others for keyword in other.node.keywords}
    package = full.partition(".")[0]
    for keyword in unknown:
        name = keyword.arg or ""
        if {change.new for change in TRAINERS.changed if change.old == name and change.new} & beside:
            continue  # the script passes both names, one of which is for earlier releases
        yield diagnostic(
            "trainer-argument-unknown",
            (script.file, keyword.value.lineno),
            severity=_SEVERITIES[reached],
            fix=_fix(full, name, taken, run),
            name=full.rpartition(".")[2],
            package=package,
            release=run.versions.get(package, ""),
            keyword=name,
        )


def _not_in_table(script: Script, call: Call, run: Run) -> Iterator[Diagnostic]:
    """Use a table of changed arguments to check calls to classes whose source cannot be read.

    The table lists arguments of transformers classes, such as ``evaluation_strategy``, which was renamed. A
    setting that is passed directly to a ``Trainer`` belongs in the training arguments instead.
    """
    package, _, full = script.full(call.name).partition(".")
    kind = full.rpartition(".")[2].removeprefix("Seq2Seq")
    if package != "transformers" or kind not in TRAINERS.renamed or is_own(script, call.name):
        return
    renamed, version = TRAINERS.renamed[kind], run.version("transformers")
    for keyword in call.node.keywords:
        severity: Severity
        if keyword.arg == renamed.old:
            if version is None or version <= Version(renamed.last):
                continue
            severity = "fails" if version >= Version(renamed.first) else "likely"
            fix = message("lint.argument-renamed-to", new=renamed.new)
        elif kind == "Trainer" and keyword.arg not in {None, *TRAINERS.taken}:
            newer = version is not None and version > Version(TRAINERS.last_known)
            severity = "likely" if newer else "fails"
            name = "eval_strategy" if keyword.arg == "evaluation_strategy" else str(keyword.arg)
            fix = message("lint.argument-elsewhere", name=name)
        else:
            continue
        yield diagnostic(
            "trainer-argument-unknown-here",
            (script.file, keyword.value.lineno),
            severity=severity,
            fix=fix,
            called=call.last,
            keyword=str(keyword.arg),
        )


def check_compute_loss(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find a Trainer subclass whose ``compute_loss`` rejects an argument that ``training_step`` passes."""
    transformers = run.version("transformers")
    if transformers is None or transformers < Version("4.46.0") or _replaced(script):
        return
    losses = [
        (node, loss) for node in script.classes if (loss := _methods(node).get("compute_loss")) is not None
    ]
    if any(_takes(loss) and loss.args.kwarg is None for _, loss in losses):
        return  # the script defines both signatures, and the other signature is for earlier releases
    for node, loss in losses:
        reached = conditions_of(script.tree).of(loss)
        if reached == "by-version" or _takes(loss) or loss.decorator_list or not _is_trainer(script, node):
            continue
        place, severity = (script.file, loss.lineno), _SEVERITIES[reached]
        yield diagnostic("compute-loss-signature", place, severity=severity, release=str(transformers))


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {statement.name: statement for statement in node.body if isinstance(statement, ast.FunctionDef)}


def _takes(loss: ast.FunctionDef) -> bool:
    named = {argument.arg for argument in [*loss.args.args, *loss.args.kwonlyargs]}
    return loss.args.kwarg is not None or "num_items_in_batch" in named


def _replaced(script: Script) -> bool:
    """Return whether the script might change the arguments that ``compute_loss`` receives.

    This is the case if the script defines or assigns ``training_step``, or assigns ``compute_loss``.
    """
    if any("training_step" in _methods(node) for node in script.classes):
        return True
    stored = (node for node in script.nodes if isinstance(node, (ast.Name, ast.Attribute)))
    return any(isinstance(node.ctx, ast.Store) and last_name(node) in _STEPS for node in stored)


def _is_trainer(script: Script, node: ast.ClassDef) -> bool:
    """Return whether a class in the script is a subclass of a Trainer from transformers or TRL.

    Return False if a base class before the Trainer is unknown, because the unknown class can override methods
    of the Trainer.
    """
    by_name = {defined.name: defined for defined in script.classes}
    for base in () if node.decorator_list else node.bases:
        name = dotted(base)
        if _origin(script, name, frozenset((node.name,)), inherited=False):
            return True
        if name not in by_name or by_name[name].bases:
            return False  # this base class, or one of its own base classes, is unknown
    return False


def _origin(
    script: Script, name: str, seen: frozenset[str] = frozenset(), *, inherited: bool = True
) -> str | None:
    """Return the full name of the transformers or TRL class to which a name refers, or None.

    An example is ``trl.SFTTrainer``. If `inherited` is true, a class that the file defines counts only if it
    inherits the constructor.
    """
    named = [node for node in script.classes if node.name == name]
    if named:
        defined = named[0]
        if len(named) > 1 or name in seen or (inherited and not _inherits(defined)) or not defined.bases:
            return None
        return _origin(script, dotted(defined.bases[0]), seen | {name}, inherited=inherited)
    if name.partition(".")[0] in script.stored:
        return None
    full = script.full(name)
    endings = _ENDINGS.get(full.partition(".")[0], ())
    return full if "." in full and endings and full.endswith(endings) else None


def _inherits(node: ast.ClassDef) -> bool:
    """Return whether a class inherits its constructor, with the same arguments, from its first base class."""
    return not (node.decorator_list or node.keywords or _methods(node).keys() & {"__init__", "__new__"})


def _fix(full: str, keyword: str, taken: frozenset[str], run: Run) -> Message:
    name = full.rpartition(".")[2]
    for change in TRAINERS.changed:
        if name.endswith(change.ending) and keyword == change.old:
            if not change.new:
                return message("lint.argument-gone", since=change.since)
            if change.new in taken or "(" in change.new:
                return message("lint.argument-renamed", new=change.new, since=change.since)
    arguments = _arguments_of(full, name)
    if arguments and run.signatures is not None and keyword in (run.signatures.taken(arguments) or ()):
        return message("lint.argument-of-settings", there=arguments.rpartition(".")[2])
    near = difflib.get_close_matches(keyword, taken, n=1)
    return message("lint.argument-near", near=near[0]) if near else message("lint.take-it-out")


def _arguments_of(full: str, name: str) -> str:
    """Return the name of a trainer's settings class, such as ``trl.SFTConfig`` for ``trl.SFTTrainer``."""
    if not name.endswith("Trainer"):
        return ""
    package = full.partition(".")[0]
    return f"{package}.{name.removesuffix('Trainer')}{'Config' if package == 'trl' else 'TrainingArguments'}"
