"""What is wrong with a source of numbers reaches a Chinese reader in Chinese, facts and all."""

from __future__ import annotations

import re
import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import duckdb
import pytest

from stallwatch_dashboard.sources import fetching, store
from stallwatch_dashboard.sources.exposition import NotMetrics, parse
from stallwatch_dashboard.sources.prometheus import PrometheusStore
from stallwatch_dashboard.words_sources import retold


def failed(monkeypatch: pytest.MonkeyPatch, error: Exception) -> str:
    """What a fetch says that fails so."""

    def answer(*_args: Any, **_kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(fetching._opener, "open", answer)
    with pytest.raises(fetching.FetchError) as told:
        fetching.fetch("http://node7:19400/metrics")
    return str(told.value)


def test_every_trouble_of_a_source_is_told_in_chinese(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prometheus = PrometheusStore("http://127.0.0.1:9")
    prometheus.last_seen()
    prometheus.close()
    with pytest.raises(fetching.FetchError) as nonsense:
        fetching.endpoint("ssh://node7")
    with pytest.raises(NotMetrics) as page:
        parse("<html>")
    told = {
        prometheus.problem or "": "http://127.0.0.1:9",
        store._why(duckdb.IOException("Could not set lock on file"), tmp_path): str(tmp_path),
        store._why(duckdb.IOException("no space"), tmp_path): "no space",
        failed(monkeypatch, urllib.error.HTTPError("", 503, "", Message(), None)): "503",
        failed(monkeypatch, urllib.error.URLError("refused\nby the host")): "refused\nby the host",
        str(nonsense.value): "ssh://node7",
        str(page.value): "",
    }
    for english, fact in told.items():
        chinese = retold(english, "zh")
        assert re.search("[\u4e00-\u9fff]", chinese) and fact in chinese, english
        assert retold(english, "en") == english
    assert retold("something else", "zh") == "something else"


def test_no_sentence_in_the_table_has_gone_from_the_sources() -> None:
    from stallwatch_dashboard.words_sources import _SENTENCES

    folder = Path(store.__file__).parent
    said = "".join(path.read_text() for path in folder.glob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", said)  # sentences of several lines
    said = re.sub(r"\{[^{}]*\}", "{}", said)
    assert [english for english, _ in _SENTENCES if english not in said] == []
