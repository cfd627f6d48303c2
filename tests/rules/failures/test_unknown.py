"""Exceptions in logs: the one that ended the run, and those that no rule knows."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stallwatch_rules.failures.raised import ExceptionChain, ExceptionTable, LinePosition, fold, unknown_in
from stallwatch_rules.failures.tracebacks import TracebackReader
from stallwatch_rules.records import Line


def lines(text: str, rank: int | None = 0) -> list[Line]:
    return [Line(part, "run.log", number, rank) for number, part in enumerate(text.splitlines(), 1)]


def read(
    text: str, hits: dict[int, set[str]] | None = None, failures: Iterable[str] = ()
) -> list[ExceptionChain]:
    """All exceptions of a text; ``hits`` are rules by line number."""
    reader = TracebackReader(set(failures))
    raised = [reader.feed(line, (hits or {}).get(line.number, ())) for line in lines(text)]
    return [item for item in raised if item is not None] + reader.left(0)


def summary(text: str) -> list[tuple[str, str, str]]:
    return [(item.kind, item.exception, item.message) for item in read(text)]


PLAIN = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 90, in <module>
    main()
  File "/home/ada/train.py", line 71, in main
    loss = model(batch)
           ^^^^^^^^^^^^
  File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
  File "/home/ada/model.py", line 12, in forward
    ...<5 lines>...
    )
ValueError: expected 3 channels, got 4
"""


def test_final_exception_and_frames_are_read() -> None:
    (raised,) = read(PLAIN)
    assert (raised.kind, raised.exception) == ("failure", "ValueError")
    assert raised.message == "expected 3 channels, got 4"
    assert raised.line.number == 12
    assert [str(frame) for frame in raised.frames if not frame.library] == [
        "/home/ada/train.py:90 in <module>",
        "/home/ada/train.py:71 in main",
        "/home/ada/model.py:12 in forward",
    ]


def test_exception_of_a_local_class_is_read() -> None:
    (raised,) = read(PLAIN.replace("ValueError:", "train.<locals>.OddBatch:"))
    assert raised.exception == "train.<locals>.OddBatch"
    assert raised.message == "expected 3 channels, got 4"
    (raised,) = read(GROUP.replace("ValueError:", "train.<locals>.BatchError:"))
    assert raised.root.startswith("train.<locals>.BatchError: ")


def test_chained_exceptions_are_one_failure_with_its_root() -> None:
    text = """\
Traceback (most recent call last):
  File "a.py", line 1, in f
    d["x"]
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "a.py", line 2, in g
    f()
LookupError: no x

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in h
    g()
app.errors.Fatal: gave up
"""
    (raised,) = read(text)
    assert (raised.exception, raised.message, raised.root) == ("app.errors.Fatal", "gave up", "KeyError: 'x'")


def test_quoted_exception_of_a_worker_is_read() -> None:
    text = """\
Traceback (most recent call last):
  File "train.py", line 5, in <module>
    for batch in loader:
RuntimeError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "data.py", line 9, in __getitem__
    raise ValueError("bad row")
ValueError: bad row
"""
    (raised,) = read(text)
    assert (raised.exception, raised.message) == ("ValueError", "bad row")
    assert raised.root == "" and [frame.path for frame in raised.frames] == ["data.py"]


@pytest.mark.parametrize(
    "header",
    [
        " 40%|████      | 4/10 [00:08<00:12,  2.0s/it]Traceback (most recent call last):",
        "Exception in thread Thread-4:\nTraceback (most recent call last):",
    ],
)
def test_text_before_the_header_is_ignored(header: str) -> None:
    text = f'{header}\n  File "a.py", line 1, in f\n    x()\nOSError: [Errno 5] Input/output error\n'
    assert summary(text) == [("failure", "OSError", "[Errno 5] Input/output error")]


def test_indented_excerpt_is_read() -> None:
    text = "".join(f"    {line}\n" for line in PLAIN.splitlines())
    (raised,) = read(text)
    assert (raised.exception, raised.message) == ("ValueError", "expected 3 channels, got 4")
    assert len(raised.frames) == 4


def test_record_with_an_unindented_first_line_is_read() -> None:
    text = "".join(f"  {line}\n" for line in PLAIN.splitlines())
    (raised,) = read("traceback : " + text.lstrip())
    assert (raised.exception, raised.message) == ("ValueError", "expected 3 channels, got 4")


NOTEBOOK = """\
---------------------------------------------------------------------------
OSError                                   Traceback (most recent call last)
/opt/env/lib/python3.11/site-packages/lib/load.py in read(path)
     11     try:
---> 12         open(path)
     13     except KeyError:

Cell In[3], line 1
----> 1 read("x")

OSError: [Errno 5] Input/output error
"""


def test_notebook_traceback_is_read() -> None:
    (raised,) = read(NOTEBOOK)
    assert (raised.exception, raised.message) == ("OSError", "[Errno 5] Input/output error")
    assert [(frame.name, frame.line) for frame in raised.frames] == [("read", 0), ("", 1)]


def test_truncated_notebook_traceback_has_its_exception() -> None:
    (raised,) = read(NOTEBOOK.rpartition("OSError")[0])
    assert (raised.kind, raised.exception, raised.message) == ("failure", "OSError", "")


def test_traceback_with_prefixed_lines_is_read() -> None:
    lead = "ERROR 10-25 13:08:43 [core.py:708] "
    text = "".join(
        lead + line + "\n"
        for line in (
            "Traceback (most recent call last):",
            '  File "core.py", line 699, in run',
            "    serve()",
            "zmq.error.Again: resource busy",
        )
    )
    assert summary(text) == [("failure", "zmq.error.Again", "resource busy")]


def test_rich_traceback_is_read() -> None:
    text = """\
╭─────────────── Traceback (most recent call last) ───────────────╮
│ /home/ada/train.py:41 in main                                    │
│   40 │   step = 0                                                │
│ ❱ 41 │   run(step)                                               │
╰──────────────────────────────────────────────────────────────────╯
TypeError: run() takes 0 positional arguments
"""
    (raised,) = read(text)
    assert raised.exception == "TypeError"
    assert [str(frame) for frame in raised.frames] == ["/home/ada/train.py:41 in main"]


def test_message_on_the_next_line_is_read() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nBuildError:\nno compiler found\n'
    assert summary(text) == [("failure", "BuildError", "no compiler found")]


def test_indented_lines_continue_a_message() -> None:
    text = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 90, in <module>
    model.load_state_dict(state)
RuntimeError: Error(s) in loading state_dict for Net:
\tsize mismatch for head.weight: copying a param with shape torch.Size([8, 4]) from checkpoint
  3%|▎         | 1/30 [00:21<10:19, 21.38s/it]
\tnothing of it
"""
    first = "Error(s) in loading state_dict for Net:"
    second = "size mismatch for head.weight: copying a param with shape torch.Size([8, 4]) from checkpoint"
    assert summary(text) == [("failure", "RuntimeError", f"{first} {second}")]


@pytest.mark.parametrize(
    ("below", "message"),
    [
        (
            "      [end of output]\n  note: This error originates from a subprocess.\n",
            "No module named 'torch'",
        ),
        ("        install torch first\n", "No module named 'torch' install torch first"),
    ],
)
def test_only_deeper_lines_continue_an_indented_message(below: str, message: str) -> None:
    shown = (
        '      Traceback (most recent call last):\n        File "setup.py", line 7, in <module>\n'
        f"          import torch\n      ModuleNotFoundError: No module named 'torch'\n{below}"
    )
    assert summary(shown) == [("failure", "ModuleNotFoundError", message)]


def test_ignored_exceptions_and_interrupts_are_not_failures() -> None:
    text = """\
Exception ignored in: <function Op.__del__ at 0x7f12>
Traceback (most recent call last):
  File "op.py", line 8, in __del__
AttributeError: 'Op' object has no attribute 'handle'
Traceback (most recent call last):
  File "train.py", line 3, in <module>
KeyboardInterrupt
"""
    assert [item.kind for item in read(text)] == ["ignored", "interrupt"]


@pytest.mark.parametrize("end", [3, 4])
def test_ignored_exceptions_of_two_processes_can_interleave(end: int) -> None:
    lines = """\
Exception ignored in atexit callback: <function store at 0x7f12>
Traceback (most recent call last):
  File "store.py", line 8, in store
    table.flush()
  File "table.py", line 5, in flush
    os.replace(new, old)
FileNotFoundError: [Errno 2] No such file or directory: 'a'
""".splitlines(keepends=True)
    text = "".join([*lines[:end], *lines[:4], *lines[4:], *lines[end:]])
    assert {item.kind for item in read(text)} == {"ignored"}
    failure = "".join(lines[1:]).replace("table", "train")
    assert [item.kind for item in read(text + "step 3\n" + failure)][-1] == "failure"


def test_exception_of_a_destructor_is_not_fatal() -> None:
    text = """\
Traceback (most recent call last):
  File "/usr/lib/python3.8/site-packages/torch/utils/data/dataloader.py", line 1466, in __del__
  File "/usr/lib/python3.8/multiprocessing/process.py", line 160, in is_alive
    assert self._parent_pid == os.getpid(), 'can only test a child process'
AssertionError: can only test a child process
"""
    assert [item.kind for item in read(text)] == ["ignored"]
    assert [item.kind for item in read(text.replace("__del__", "fetch"))] == ["failure"]
    chain = text + "\nDuring handling of the above exception, another exception occurred:\n\n"
    kinds = [read(chain + text.replace("__del__", name))[-1].kind for name in ("__del__", "fetch")]
    assert kinds == ["ignored", "failure"], "another process may write into the same file"


def test_tensorflow_feeding_thread_ends_with_its_session() -> None:
    text = """\
Exception in thread Thread-4:
Traceback (most recent call last):
  File "/home/ada/train.py", line 76, in load_and_enqueue
    sess.run(enqueue_op, feed_dict=food)
tensorflow.python.framework.errors_impl.CancelledError: Enqueue operation was cancelled
"""
    assert [item.kind for item in read(text)] == ["ignored"]
    assert [item.kind for item in read(text.replace("Exception in thread Thread-4:\n", ""))] == ["failure"]


def test_traceback_in_a_warning_is_not_a_failure() -> None:
    lead = "(EngineCore pid=7) {} 06-25 16:32:09 [import_utils.py:408] "
    warned = "".join(lead.format("WARNING") + line + "\n" for line in PLAIN.splitlines())
    assert [item.warned for item in read(warned + PLAIN)] == [True, False]
    assert [item.warned for item in read(warned.replace("WARNING", "ERROR"))] == [False]


def test_traceback_of_executed_code_is_a_snippet() -> None:
    text = 'Traceback (most recent call last):\n  File "<string>", line 3, in <module>\nNameError: x\n'
    assert [item.kind for item in read(text)] == ["snippet"]
    frozen = text.replace("<string>", "<frozen runpy>")
    assert [item.kind for item in read(frozen)] == ["snippet"]


@pytest.mark.parametrize(
    "tail",
    [
        '  File "/e/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 383, in launch\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n=====\ntrain.py FAILED\n",
        '  File "/e/lib/python3.11/site-packages/accelerate/commands/launch.py", line 9, in simple_launcher\n'
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.\n",
        '  File "/e/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n',
        '  File "C:\\e\\lib\\site-packages\\accelerate\\commands\\launch.py", line 9, in simple_launcher\n'
        "subprocess.CalledProcessError: Command '['python.exe', 't.py']' returned non-zero exit status 1.\n",
    ],
)
def test_traceback_of_a_launcher_is_a_wrapper(tail: str) -> None:
    assert [item.kind for item in read("Traceback (most recent call last):\n" + tail)] == ["wrapper"]


def test_failed_build_is_not_a_wrapper() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/e/lib/python3.11/site-packages/torch/utils/cpp_extension.py", line 2100, in _run_ninja\n'
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n"
    )
    assert [item.kind for item in read(text)] == ["failure"]


def test_frames_without_a_header_are_read() -> None:
    text = 'some text\n  File "train.py", line 7, in step\n    loss.backward()\nMyError: it broke\n'
    assert summary(text) == [("failure", "MyError", "it broke")]


def test_frames_without_a_header_in_an_indented_excerpt() -> None:
    excerpt = "\n".join("      " + line for line in PLAIN.splitlines()[1:])
    assert summary(excerpt) == [("failure", "ValueError", "expected 3 channels, got 4")]


def test_truncated_traceback_is_a_failure() -> None:
    text = 'Traceback (most recent call last):\n  File "train.py", line 7, in step\n    loss.backward()\n'
    assert summary(text) == [("failure", "", "")]


def test_bare_exception_line_counts_only_at_the_end() -> None:
    bare = "ValueError: wrong shape\n"
    assert summary("step 1\n" + bare) == [("failure", "ValueError", "wrong shape")]
    assert summary(bare + "it goes on\n" * 10) == []


@pytest.mark.parametrize(
    "text",
    [
        "    raise ValueError('source code')\n",
        "Epoch: 3\n",
        "wandb: Program failed\n",
        '  File "op.py", line 8 in wait\nCurrent thread 0x7f (most recent call first):\n',
        "WARNING: no Error here\n",
    ],
)
def test_text_similar_to_an_exception_is_ignored(text: str) -> None:
    assert read(text) == []


def test_rules_matching_in_a_traceback_explain_it() -> None:
    text = PLAIN + "(a longer explanation)\nsee the manual\n"
    assert read(text, {12: {"bad-channels"}})[0].rules == {"bad-channels"}
    assert read(text, {14: {"manual"}}, failures=["manual"])[0].rules == {"manual"}
    assert read(text, {14: {"killing-subprocess"}}, failures=["manual"])[0].rules == set()
    other = PLAIN + "[rank0]:[E123 watchdog] timeout\n"
    later = other.replace("[rank0]:[E123", "[E123 ")
    assert read(later, {13: {"timeout"}}, failures=["timeout"])[0].rules == set()


def table(*texts: str, rank: int | None = 0) -> ExceptionTable:
    reader, out = TracebackReader(), ExceptionTable()
    for text in texts:
        for line in lines(text, rank):
            raised = reader.feed(line)
            if raised is not None:
                out.add(raised)
    return out.with_left(reader.left(0))


def test_same_exception_on_many_ranks_is_folded() -> None:
    seen = [item for rank in (3, 1, 0) for item in unknown_in(table(PLAIN, rank=rank), ())]
    for entry in seen:
        entry.raised.step = 12
    (unknown,) = fold(seen)
    assert unknown.ranks == [0, 1, 3]
    assert unknown.count == 3
    assert unknown.first.rank == 0
    assert unknown.first.step == 12
    assert unknown.frames == [
        "/home/ada/train.py:90 in <module>",
        "/home/ada/train.py:71 in main",
        "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py:1778 in _wrapped_call_impl",
        "/home/ada/model.py:12 in forward",
    ]


def test_memory_for_many_exceptions_is_bounded() -> None:
    names = ("".join(chr(97 + int(digit)) for digit in str(number)) for number in range(1000, 2000))
    texts = [PLAIN.replace("ValueError", f"{name.title()}Error") for name in names]
    kept = table(*texts).seen
    assert 100 <= len(kept) <= 300


def test_exceptions_with_rules_are_excluded() -> None:
    exceptions = table(PLAIN)
    (seen,) = unknown_in(exceptions, ())
    seen.raised.rules.add("bad-channels")
    assert unknown_in(exceptions, {"bad-channels"}) == []
    assert unknown_in(exceptions, {"another"}) == [seen]


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/srv/train.py", line 5, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Exception Group Traceback (most recent call last):
    |   File "/srv/train.py", line 3, in collect
    | ExceptionGroup: inner (1 sub-exception)
    +-+---------------- 1 ----------------
      | Traceback (most recent call last):
      |   File "/srv/train.py", line 2, in roll_out
      |     raise ValueError("no answer")
      | ValueError: no answer
      +------------------------------------
    +---------------- 2 ----------------
    | KeyError: 'k'
    +------------------------------------
"""


def test_exception_group_has_its_first_exception() -> None:
    (raised,) = read(GROUP + "done\n", {13: {"bad-answer"}}, ["bad-answer"])
    assert raised.exception == "ExceptionGroup"
    assert raised.message == "unhandled errors in a TaskGroup (2 sub-exceptions)"
    assert raised.root == "ValueError: no answer"
    assert [frame.name for frame in raised.frames] == ["<module>"]
    assert raised.rules == {"bad-answer"}


def test_second_exception_group_ends_the_chain() -> None:
    text = GROUP + "\nDuring handling of the above exception, another exception occurred:\n\n"
    (raised,) = read(text + GROUP.replace("unhandled errors in a TaskGroup", "several failed"))
    assert raised.message == "several failed (2 sub-exceptions)"
    assert raised.root == "ValueError: no answer"


def test_quoted_exception_is_not_explained_by_the_launcher() -> None:
    text = """\
Traceback (most recent call last):
  File "/opt/env/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 211, in join
    raise ProcessRaisedException(msg, error_index, failed_process.pid)
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/opt/env/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 87, in _wrap
    fn(i, *args)
  File "/home/ada/train.py", line 17, in main
    row = rows[index]
KeyError: 'row 7'
"""
    (raised,) = read(text, {4: {"torchrun-child-failed"}}, ["cuda-oom"])
    assert (raised.exception, raised.root, raised.rules) == ("KeyError", "", set())
    (raised,) = read(text, {4: {"cuda-oom"}}, ["cuda-oom"])
    assert raised.rules == {"cuda-oom"}


def test_lower_case_module_error_is_an_exception() -> None:
    text = """\
Traceback (most recent call last):
  File "/home/ada/data.py", line 14, in __getitem__
    header = struct.unpack("<I", data)
struct.error: unpack requires a buffer of 4 bytes
"""
    assert summary(text) == [("failure", "struct.error", "unpack requires a buffer of 4 bytes")]


@pytest.mark.parametrize("value", ["0.17", "12 %", "3e-4"])
def test_error_rates_and_git_helpers_are_not_exceptions(value: str) -> None:
    assert summary(f"epoch 3 evaluated\nError: {value}\n") == []
    assert summary("Error: connect ENOENT /tmp/vscode-git-0a1b2c.sock\n    at Pipe (net.js:1:1)\n") == []
    assert summary("Error: no such option\n") == [("failure", "Error", "no such option")]


LOGGED = "ERROR 11-26 10:01:0{second} [core.py:845] "
ENGINE = f"""\
{LOGGED.format(second=2)}the engine failed
{LOGGED.format(second=2)}Traceback (most recent call last):
{LOGGED.format(second=3)}  File "/home/ada/core.py", line 836, in run
{LOGGED.format(second=3)}    busy_loop()
{LOGGED.format(second=3)}AttributeError: 'NoneType' object has no attribute 'result'
"""


@pytest.mark.parametrize(
    ("text", "headed"),
    [
        (ENGINE, True),
        (ENGINE.replace("failed\n", "failed\nINFO of another process\n"), True),
        (ENGINE.replace("failed\n", "failed\n" + "INFO of another process\n" * 3), False),
        (ENGINE.replace("[core.py:845] the", "[client.py:7] the"), False),  # another logger
        (ENGINE.replace(LOGGED.format(second=2), "").replace(LOGGED.format(second=3), ""), False),
    ],
)
def test_message_of_the_logger_that_prints_a_traceback_heads_it(text: str, headed: bool) -> None:
    reader = TracebackReader({"engine"})
    for line in lines(text):
        reader.feed(line, {"engine"} & {"engine" * line.text.endswith("failed")}, LinePosition(line.number))
    (raised,) = reader.left()
    assert (raised.heading, raised.rules) == ({"engine"} if headed else set(), set())


REMOTE = """\
ray.exceptions.RayTaskError(EngineDeadError): ray::Worker.generate() (pid=7, ip=10.0.0.1)
  File "/home/ada/loop.py", line 386, in generate
    outputs = await gather(*tasks)
vllm.v1.engine.exceptions.EngineDeadError: see the stack trace above
"""


def test_report_of_a_remote_task_does_not_belong_to_the_exception_above_it() -> None:
    first, second = read(PLAIN + REMOTE, {13: {"engine"}, 16: {"engine"}}, failures={"engine"})
    assert (first.exception, first.rules) == ("ValueError", set())
    assert (second.exception, second.rules) == ("vllm.v1.engine.exceptions.EngineDeadError", {"engine"})


BARE = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 60, in main
    {code}
{last}
"""


@pytest.mark.parametrize(
    ("code", "last", "described"),
    [
        ("assert batch.mask.any()", "AssertionError", "AssertionError: `assert batch.mask.any()`"),
        ("batch = next(batches)", "StopIteration", "StopIteration: `batch = next(batches)`"),
        ("assert mask.any(), name", "AssertionError: wiki", "AssertionError: wiki"),
        ("raise NotImplementedError", "NotImplementedError", "NotImplementedError"),
        ("│ 59 │ mask = None", "AssertionError", "AssertionError"),
    ],
)
def test_exception_without_a_message_shows_the_code_that_raised_it(
    code: str, last: str, described: str
) -> None:
    table = ExceptionTable()
    for raised in read(BARE.format(code=code, last=last)):
        table.add(raised)
    (unknown,) = fold(unknown_in(table, ()))
    assert unknown.described == described


@pytest.mark.parametrize(
    ("below", "more"),
    [
        ("    kind = row['id'].split('_')", ""),  # the other rank's line of code
        ("    while reading row['id'] of a file", " while reading row['id'] of a file"),
    ],
)
def test_code_of_another_rank_is_not_part_of_the_message(below: str, more: str) -> None:
    last = "AttributeError: 'list' object has no attribute 'split'"
    text = BARE.format(code="kind = row['id'].split('_')", last=last) + f"{below}\n{last}\n"
    (raised, *_) = read(text)
    assert raised.message == f"'list' object has no attribute 'split'{more}"
