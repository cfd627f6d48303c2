"""An inference server that continues to answer did not end by the failure of one request."""

from __future__ import annotations

import pytest
from smallruns import raised, steps

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.phases import is_answer
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

START = "INFO 05-11 08:00:05 [api_server.py:1395] vLLM API server version 0.9.2\n"
ANSWER = 'INFO:     10.0.0.4:41024 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
REPORT = (
    "INFO 05-11 08:16:10 [loggers.py:118] Engine 000: Avg prompt throughput: 3.1 tokens/s, Avg generation"
    " throughput: 916.0 tokens/s, Running: 9 reqs, Waiting: 0 reqs\n"
)
IDLE = REPORT.replace("916.0", "0.0")
HEALTH = 'INFO:     10.0.0.4:41024 - "GET /health HTTP/1.1" 200 OK\n'
REFUSED = ANSWER.replace("200 OK", "500 Internal Server Error")
TOO_LONG = raised(
    "ValueError: This model's maximum context length is 32768 tokens. However, you requested 40211 tokens in"
    " the messages, Please reduce the length of the messages."
)
LEFT = raised("starlette.requests.ClientDisconnect")
DIED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"


def diagnosed(catalogue: Catalogue, matcher: Matcher, text: str) -> Diagnosis:
    reading = RunReading(catalogue, matcher)
    reader = LineReader("x")
    reading.feed(reader.feed(text.encode()) + reader.finish())
    return rendered(reading.diagnose())


@pytest.mark.parametrize("failure", [TOO_LONG, LEFT])
@pytest.mark.parametrize(
    ("after", "healthy"),
    [
        (ANSWER * 5, True),
        (REPORT * 5, True),
        (ANSWER * 4, False),
        (IDLE * 30, False),
        (HEALTH * 30, False),
        (REFUSED * 30, False),
        (DIED + ANSWER * 10, False),  # what was begun is answered still
    ],
)
def test_failure_before_many_responses_is_not_a_failure_of_the_server(
    catalogue: Catalogue, matcher: Matcher, failure: str, after: str, healthy: bool
) -> None:
    diagnosis = diagnosed(catalogue, matcher, START + ANSWER * 9 + failure + after)
    assert (diagnosis.verdict == "healthy") == healthy, diagnosis.verdict


def test_failed_trainer_with_a_running_server_has_failed(catalogue: Catalogue, matcher: Matcher) -> None:
    text = START + steps(1, 9) + raised("ValueError: no such column") + ANSWER * 50
    assert diagnosed(catalogue, matcher, text).verdict == "unknown-failure"


@pytest.mark.parametrize(
    "next_line",
    [
        REPORT,
        ANSWER,
        "ERROR 05-11 08:16:10 [core.py:396] other\n",
        "12/11/26 08:16:10 other\n",
        "WARNING:  other\n",
    ],
)
def test_exception_without_a_message_takes_no_other_line(
    catalogue: Catalogue, matcher: Matcher, next_line: str
) -> None:
    unknown = diagnosed(catalogue, matcher, LEFT + next_line).unknown
    assert [(item.exception, item.message) for item in unknown] == [
        ("starlette.requests.ClientDisconnect", "")
    ]


def test_message_of_an_exception_can_begin_on_the_next_line(catalogue: Catalogue, matcher: Matcher) -> None:
    unknown = diagnosed(catalogue, matcher, raised("my.OddError:") + "Error in the third shard\n").unknown
    assert unknown[0].message == "Error in the third shard"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ANSWER, True),
        (ANSWER.replace("/v1/chat/completions", "/generate/"), True),
        (ANSWER.replace("/v1/chat/completions", "/update_named_param/"), False),
        (REPORT, True),
        (IDLE, False),
        ("[2026-05-11 08:16:10] Decode batch. #running-req: 3, gen throughput (token/s): 0.53, #q: 0", True),
        ("Decode batch. #running-req: 0, gen throughput (token/s): 0.00, #queue-req: 0", False),
        ('HTTP Request: POST http://h:8000/v1/chat/completions "HTTP/1.1 200 OK"', False),  # a client's
    ],
)
def test_response_is_a_sign_of_work(text: str, expected: bool) -> None:
    assert is_answer(text) == expected


def test_logging_error_report_is_not_an_exception(catalogue: Catalogue, matcher: Matcher) -> None:
    text = (
        "--- Logging error ---\n"
        + raised("OSError: [Errno 32] Broken pipe")
        + 'Call stack:\n  File "/home/ada/train.py", line 9, in close\n    log.warning(\n'
        + "Message: 'Sending process %s closing signal %s'\nArguments: (7, 'SIGINT')\n"
    )
    assert not diagnosed(catalogue, matcher, text).unknown
    assert diagnosed(catalogue, matcher, raised("ValueError: no")).unknown
