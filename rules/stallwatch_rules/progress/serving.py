"""Lines by which an inference server shows that it serves, as a training does by its steps."""

from __future__ import annotations

from stallwatch_rules.text.lazy import lazy

WORDS = ("HTTP/", "throughput")  #: a line of each kind holds one of these

#: uvicorn 0.54.0: ``config.py``, the access log's format. What only asks for the server's state, or sets it,
#: is no work: ``GET /health`` is answered by a server whose engine hangs, too.
_ANSWERED = lazy(
    r'"POST /(?:v\d+/|generate|chat|completions?\b|inference|infer\b|invocations|embed|score|rerank|classify)'
    r'[^" ]* HTTP/\d(?:\.\d)?" 2\d\d\b'
)
#: vLLM 0.11.0: ``v1/metrics/loggers.py``; SGLang: its scheduler's "Decode batch" lines. An engine that
#: has nothing to do, or hangs, reports 0.
_GENERATED = lazy(r"(?:Avg generation throughput: |gen throughput \(token/s\): )(?!0(?:\.0*)?(?![\d.]))\d")


def is_answer(text: str) -> bool:
    """Whether the line says that a request was answered, or tokens generated."""
    return ("HTTP/" in text and _ANSWERED.search(text) is not None) or (
        "throughput" in text and _GENERATED.search(text) is not None
    )
