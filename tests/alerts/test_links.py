"""Links to the pages of the rule and the run: at the end, complete, and only Stallwatch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallwatch_alerts.delivery.grouping import group_of, grouped_message, merged
from stallwatch_alerts.messages.compose import render
from stallwatch_alerts.messages.layout import Links, blocks_of
from stallwatch_alerts.notice import incident_notice, linked
from stallwatch_alerts.settings import AlertSettings
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.catalogue import load_catalogue

Stall = Callable[..., Incident]


@pytest.mark.parametrize(("language", "labels"), [("en", ["Rule", "Dashboard"]), ("zh", ["规则", "看板"])])
def test_message_ends_with_links(stall: Stall, language: Any, labels: list[str], cache_folder: Path) -> None:
    page = load_catalogue(cache=cache_folder).pages["cuda-oom"]  # a real page, which has a path
    settings = AlertSettings(language=language, dashboard_url="https://watch.example.org/")
    incident = stall(rule="cuda-oom", kind="finding", run="my run & co", evidence=["x" * 900] * 9)
    notice = linked(incident_notice(incident, language, page), page, incident.run, settings)
    *_, last = blocks_of(notice.message.text)
    assert isinstance(last, Links)
    assert [label for label, _ in last.links] == labels
    rule, run = (url for _, url in last.links)
    assert rule == "https://watch.example.org/rules?rule=cuda-oom"
    assert run == "https://watch.example.org/run?run=my%20run%20%26%20co"
    assert len(notice.message.text) <= 2000
    # The same holds in a group, whose other members need space of their own.
    group = grouped_message(merged([group_of(notice)] * 30), language, late=4000)
    assert blocks_of(group.message.text)[-1] == last and len(group.message.text) <= 2000


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        (AlertSettings(), "Rule: stallwatch rules show cuda-oom"),
        (AlertSettings(docs_url="https://d.example/x/"), "Rule: https://d.example/x/catalogue/cuda-oom/"),
        (
            AlertSettings(docs_url="https://d.example", language="zh"),
            "规则：https://d.example/zh/catalogue/cuda-oom/",
        ),
    ],
    ids=["nothing configured", "a site", "a site in Chinese"],
)
def test_rule_without_a_dashboard_links_to_the_site_or_names_a_command(
    stall: Stall, settings: AlertSettings, last: str, cache_folder: Path
) -> None:
    page = load_catalogue(cache=cache_folder).pages["cuda-oom"]
    incident = stall(rule="cuda-oom", kind="finding")
    notice = linked(incident_notice(incident, settings.language, page), page, incident.run, settings)
    assert notice.message.text.splitlines()[-1] == last


def test_message_without_a_page_and_a_dashboard_has_no_links(stall: Stall) -> None:
    notice = incident_notice(stall(), "en", None)
    assert linked(notice, None, "myrun", AlertSettings()) == notice


@pytest.mark.parametrize(
    ("language", "said"), [("en", "Duration of the incident: 3 min 10 s."), ("zh", "持续了 3 分 10 秒。")]
)
def test_end_of_a_finding_has_its_duration(stall: Stall, language: str, said: str) -> None:
    over = stall(
        kind="finding", stalled_seconds=None, status="resolved", resolution="recovered", resolved_at=1190.0
    )
    assert said in render(over, language, None).text
