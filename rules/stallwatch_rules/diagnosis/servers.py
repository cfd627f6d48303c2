"""Logs of inference servers beside a trainer's: what fails there is no rank's, and came at no step."""

from __future__ import annotations

from stallwatch_rules.diagnosis.findings import Streams
from stallwatch_rules.text.lazy import lazy

#: vLLM 0.11.0: ``v1/engine/core.py``, ``entrypoints/openai/api_server.py``.
_VLLM = lazy(r"\bEngineCore\b|\bvLLM API server version\b|\bInitializing a V1 LLM engine\b")


def is_vllm_server(source: str, streams: Streams) -> bool:
    """Whether the lines of a source are a vLLM server's: they tell of its engine, and no step is there."""
    own = [stream for (name, _), stream in streams.items() if name == source]
    if len(own) == len(streams) or any(stream.last_advance is not None for stream in own):
        return False
    texts = (entry.first.text for stream in own for entry in stream.templates.entries.values())
    hits = (text for stream in own for hits in stream.hits.values() for text in hits.exemplars)
    return any(_VLLM.search(text) for group in (texts, hits) for text in group)
