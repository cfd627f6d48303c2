"""The probe in a program that does not know it: same output, same path, same failures.

The libraries here are stand-ins with the parts that the hooks use; the real libraries are in ``tests/repro``.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import ENGINE, Programs, Ran

from stallwatch_exporter import probe
from stallwatch_exporter.rings.probing import with_probe
from stallwatch_exporter.rings.reader import RingReader


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def test_engine_reports_steps_losses_and_invalidations(programs: Programs) -> None:
    assert programs.run(ENGINE, rank="3") == Ran(0, b"", b"")
    one, two = programs.steps()
    assert (one.rank, one.values["step"], one.values["loss"], one.values["grad_norm"]) == (3, 1, 2.0, 1.5)
    assert (two.values["step"], two.values["loss"]) == (2, 4.0)
    assert two.values["invalidations_short"] == 4
    assert programs.faults() == 0
    (named,) = [event for event in programs.events() if event["kind"] == "trace-cache"]
    assert (named["how"], named["got"], named["got_name"]) == ("short", 7, "(the model) (Module)")


def test_external_invalidations_are_counted_separately(programs: Programs) -> None:
    programs.run(ENGINE + "engine.coordinator.release_and_reset_all()\nengine.step(); engine.step()\n")
    assert programs.steps()[-1].values["invalidations_external"] == 1


def test_plain_loop_counts_the_steps_of_one_optimizer(programs: Programs) -> None:
    code = (
        "import torch\nfrom torch.optim.optimizer import Optimizer\none, other = Optimizer(), Optimizer()\n"
    )
    programs.run(code + "for _ in range(3): one.step(); other.step()\n")
    assert [(each.values["step"], each.values["learning_rate"]) for each in programs.steps()] == [
        (1, 0.25),
        (2, 0.25),
        (3, 0.25),
    ]


@pytest.mark.parametrize(
    "code",
    [
        "import sys; print(sys.path, [p for p in sys.argv])",
        ENGINE + "engine.backward(-1.0)\n",
        "import torch\nraise RuntimeError('out')\n",
        "import torch, no_such_module\n",
        "import torch, warnings\nfor _ in range(2): warnings.warn('careful', FutureWarning)\n",
        "import torch, warnings\nwarnings.simplefilter('always')\nopen(__file__)\n",  # a ResourceWarning
        "import torch, logging\nlogging.warning('one'); logging.getLogger('x').error('two')\n",
        "import logging, torch\nlogging.basicConfig(format='%(funcName)s %(lineno)d %(message)s')\n"
        "def f(): logging.warning('one %d', 'no number')\nf()\n",
        "import torch, sys\nsys.exit('good bye')\n",
        "import torch\nraise KeyboardInterrupt\n",
        "import os, torch\nprint(os.system('exit 3'), os.fork() and os.wait()[1])\n",
    ],
    ids=lambda code: code.splitlines()[-1][:30],
)
def test_output_and_exit_code_equal_those_without_the_probe(programs: Programs, code: str) -> None:
    plain = programs.run(code, probe=False)
    assert programs.run(code) == plain
    assert programs.faults() == 0


@pytest.mark.parametrize(
    ("ends", "error"), [("raise RuntimeError('out')", True), ("sys.exit(0)", False), ("pass", False)]
)
def test_rank_reports_its_exit_with_any_exception_hook(programs: Programs, ends: str, error: bool) -> None:
    """A program's own hook that calls no other hook hides nothing from the probe."""
    programs.run(f"import sys, torch\nsys.excepthook = lambda *_: print('mine')\n{ends}\n")
    events = [event for event in programs.events() if event["kind"] in ("exception", "left")]
    assert [event["kind"] for event in events] == (["exception"] if error else []) + ["left"]
    assert events[-1]["error"] is error
    assert not error or (events[0]["message"] == "out" and events[0]["frames"])


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        ("sys.exit(3)", True),
        ("sys.exit('lost')", True),
        ("sys.exit()", False),
        ("sys.exit(256)", False),  # the system keeps only the last eight bits
        ("import threading\nt = threading.Thread(target=sys.exit, args=(3,))\nt.start(); t.join()", False),
    ],
)
def test_nonzero_exit_code_is_an_error_without_an_exception(
    programs: Programs, ends: str, error: bool
) -> None:
    """The training handles its failure, logs it and ends."""
    ran = programs.run(f"import sys, torch\n{ends}\n")
    (left,) = [event for event in programs.events() if event["kind"] == "left"]
    assert left["error"] is error is (ran.code != 0)


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        ("pass", False),
        ("sys.exit(0)", False),
        ("raise SystemExit(2)", True),
        ("raise ValueError('lost')", True),
    ],
)
def test_forked_rank_reports_its_exit(programs: Programs, ends: str, error: bool) -> None:
    """A forked process does not run ``atexit``; a worker that never stepped reports nothing."""
    programs.run(
        "import multiprocessing, sys, torch\n"
        "def rank():\n"
        "    torch.optim.optimizer.Optimizer().step()\n"
        f"    {ends}\n"
        "for target in (rank, int):\n"
        "    child = multiprocessing.get_context('fork').Process(target=target)\n"
        "    child.start(); child.join()\n"
    )
    messages = [event for event in programs.events() if event["kind"] in ("exception", "left")]
    left = [event for event in messages if event["kind"] == "left"]
    assert sorted((event["step"], event["error"]) for event in left) == [(0.0, False), (1.0, error)]
    lost = [event["message"] for event in messages if event["kind"] == "exception"]
    assert lost == (["lost"] if "ValueError" in ends else [])
    assert programs.faults() == 0


def test_warnings_log_records_and_exceptions_are_reported(programs: Programs) -> None:
    programs.run(
        "import logging, warnings, torch\n"
        "for number in range(3): warnings.warn(f'careful {number}')\n"
        "logging.getLogger('x').warning('look')\nlogging.getLogger('x').info('no')\n"
        "raise RuntimeError('out')\n"
    )
    messages = [(event["kind"], event.get("text") or event.get("message")) for event in programs.events()]
    assert [each for each in messages if each[0] != "versions"] == [
        ("warning", "careful 0"),
        ("log", "look"),
        ("exception", "out"),
        ("left", None),
    ]


def test_failing_hook_is_counted_and_does_not_affect_training(programs: Programs) -> None:
    spoil = (
        "import torch, deepspeed\nimport stallwatch_probe.hooks.deepspeed as hook\n"
        "def numbers(engine): raise RuntimeError('in the probe')\nhook._numbers = numbers\n"
    )
    assert programs.run(spoil + ENGINE) == Ran(0, b"", b"")
    assert programs.faults() == 2
    assert programs.steps() == []


def test_unexpected_library_structure_does_not_affect_training(programs: Programs) -> None:
    (programs.site / "deepspeed/runtime/engine.py").write_text("DeepSpeedEngine = 5\n")
    assert programs.run("import torch, deepspeed\nprint('on')\n") == Ran(0, b"on\n", b"")
    assert programs.faults() == 1


def test_existing_sitecustomize_is_loaded(programs: Programs) -> None:
    (programs.site / "sitecustomize.py").write_text("print('theirs')\n")
    code = "import sys, torch\nprint(sys.modules['sitecustomize'].__file__)\n"
    assert programs.run(code) == programs.run(code, probe=False)
    assert programs.records() != []


def test_failing_sitecustomize_fails_as_without_the_probe(programs: Programs) -> None:
    (programs.site / "sitecustomize.py").write_text("import no_such_module\n")
    assert programs.run("print('on')") == programs.run("print('on')", probe=False)


def test_few_modules_are_imported_at_startup(programs: Programs) -> None:
    """The test skips ``site``, whose ``.pth`` files (of an editable install) may import these modules."""
    programs.rings = programs.folder / f"{os.getpid()}-1"  # the folder of a command that this process started
    programs.rings.mkdir()
    code = "import sys; before = {*sys.modules}; import sitecustomize\nprint(*{*sys.modules} - before)"
    imported = {*programs.run(code, "-S", rank=None).out.decode().split()}
    own = {name for name in imported if name.startswith("stallwatch_probe")}
    assert "stallwatch_probe.stacks" in own
    assert "stallwatch_probe.api" not in own
    # Modules whose import takes a millisecond or more, and their imports.
    dear = {"typing", "collections", "contextlib", "enum", "json", "pathlib", "re", "signal", "threading"}
    assert not imported & dear


@pytest.mark.parametrize("option", ["-S", "-I", "-E"])
def test_isolated_interpreter_has_no_probe(programs: Programs, option: str) -> None:
    code = "import sys; print('stallwatch_probe' in sys.modules)"
    assert programs.run(code, option) == Ran(0, b"False\n", b"")


def test_probe_can_be_disabled_for_one_rank(programs: Programs) -> None:
    rank = with_probe({"PYTHONPATH": str(programs.site)}, programs.rings)
    assert programs.run(ENGINE, probe=False, **{**rank, "STALLWATCH_PROBE": "0"}) == Ran(0, b"", b"")
    assert list(programs.rings.iterdir()) == []


def test_launcher_that_imports_torch_is_not_a_rank(programs: Programs) -> None:
    programs.run("import torch, warnings\nwarnings.warn('of the launcher')\n", rank=None)
    assert list(programs.rings.iterdir()) == []


def test_process_with_steps_is_a_rank(programs: Programs) -> None:
    programs.run(ENGINE, rank=None)
    assert [each.rank for each in programs.steps()] == [0, 0]


def test_program_that_replaces_itself_continues(programs: Programs) -> None:
    again = "import os, sys\nif not os.environ.get('AGAIN'):\n    os.environ['AGAIN'] = '1'\n"
    programs.run(ENGINE + again + "    os.execv(sys.executable, [sys.executable, __file__])\n")
    assert sorted(each.values["step"] for each in programs.steps()) == [1, 1, 2, 2]


def test_full_disk_does_not_stop_a_rank(programs: Programs) -> None:
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    assert programs.run(limit + ENGINE + "print('on')\n") == Ran(0, b"on\n", b"")
    assert list(programs.rings.iterdir()) == []


def test_removed_ring_does_not_stop_a_rank(programs: Programs) -> None:
    remove = "import pathlib, sys\nfor p in pathlib.Path(sys.argv[0]).parent.glob('rings/*'): p.unlink()\n"
    again = "for _ in range(4): engine.step()\nprint('on')\n"
    assert programs.run(ENGINE + remove + again) == Ran(0, b"on\n", b"")


def test_ranks_continue_after_their_agent_is_killed(programs: Programs) -> None:
    """A rank does not depend on the agent's rings or environment: it continues without messages."""
    for pipe in ("told", "go"):
        os.mkfifo(programs.folder / pipe)
    program = programs.folder / "train.py"
    program.write_text(
        ENGINE
        + "import pathlib\nhere = pathlib.Path(__file__).parent\n"
        + "(here / 'told').write_text(str(engine.global_steps))\n(here / 'go').read_text()\n"
        + "for _ in range(6000): engine.step()\n"
        + "(here / 'told').write_text(str(engine.global_steps))\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(programs.site), "RANK": "0"}
    command = [sys.executable, "-c", "from stallwatch.cli import main; main()", "run", "--no-metrics", "--"]
    agent = subprocess.Popen([*command, sys.executable, str(program)], env=environ, stderr=subprocess.DEVNULL)
    assert (programs.folder / "told").read_text() == "2"
    agent.kill()
    agent.wait(timeout=120)
    (programs.folder / "go").write_text("on")
    assert (programs.folder / "told").read_text() == "3002"
    (ring,) = (programs.folder / "stallwatch-home" / "rings").glob("*/*.ring")
    assert RingReader(ring).read().records[-1].values["step"] == 3002


def evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that Python evaluates, without annotations and code for type checkers."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for inner in value if isinstance(value, list) else [value]:
            for_checkers = isinstance(inner, ast.If) and "TYPE_CHECKING" in ast.dump(inner.test)
            if isinstance(inner, ast.AST) and not for_checkers:
                yield from evaluated(inner)


GENERIC = ("Callable", "Iterable", "Iterator", "Mapping", "Sequence", "dict", "list", "set", "tuple", "type")


def test_probe_has_no_syntax_newer_than_python_3_8() -> None:
    """Python 3.8 lacks newer syntax, and generic types outside of annotations."""
    sources = sorted(Path(probe.__file__).parent.rglob("*.py"))
    newer = [
        f"{path.name}:{node.lineno}"
        for path in sources
        for node in evaluated(ast.parse(path.read_text(), feature_version=(3, 8)))
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in GENERIC
    ]
    assert len(sources) > 10 and newer == []
