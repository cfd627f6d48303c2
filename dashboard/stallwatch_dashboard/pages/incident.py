"""One incident: what it means and what to change, its timeline, evidence, stacks, and what people said."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from stallwatch_dashboard import formats, verdict
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.common import ICONS, catalogue, language, page, say, zone
from stallwatch_dashboard.pages.headline import MOST_EVIDENCE, draw_verdict
from stallwatch_dashboard.pages.people import draw_actions
from stallwatch_dashboard.safetext import cell, markdown, verbatim
from stallwatch_exporter.incident import Event, Incident
from stallwatch_rules.stacks.listing import folded
from stallwatch_rules.stacks.words import sentence


def missing() -> bool:
    """Whether incidents cannot be read, which is no news that there are none: says so, and why."""
    why = shared().cases.unreadable()
    if why is not None:
        st.warning(markdown(say("incidents_unreadable", why)), icon=":material/warning:")
    return why is not None


def draw_incident(key: str) -> None:
    """The page of the incident of this id, drawn again every few seconds while it is open."""
    incident = shared().incident(key)
    if incident is None:
        if missing():
            return
        st.info(markdown(say("no_such_incident", key)), icon=":material/search_off:")
        return
    st.fragment(_live, run_every="3s" if incident.status == "open" else None)(key)
    draw_actions(incident)


def _live(key: str) -> None:
    source = shared()
    incident, now = source.incident(key), source.clock()
    if incident is None:
        return
    pages = catalogue(source.settings.rules).pages
    beside = source.incidents(incident.run)
    told = verdict.of_incident(
        incident, pages, now=now, zone=zone(), language=language(), say=say, beside=beside
    )
    draw_verdict(told, icon=_icon(incident))
    st.page_link(
        page("run"),
        label=f"{say('to_the_run')}: {markdown(incident.run)}",
        icon=":material/monitoring:",
        query_params={"run": incident.run},
    )
    left, right = st.columns(2, gap="medium")
    with left:
        _timeline(incident, now)
    with right:
        _deliveries(incident, now)
    if len(incident.evidence) > MOST_EVIDENCE:  # else the verdict has shown all of it
        st.markdown(f"#### {say('evidence')}")
        st.code(verbatim("\n".join(incident.evidence)), language=None, wrap_lines=True)
    if incident.stacks is not None:
        st.markdown(f"#### {say('stacks')}")
        st.text(verbatim(sentence(incident.stacks, language())))
        st.caption(say("asked_for", formats.seconds(incident.stacks.seconds)))
        st.code(verbatim(folded(incident.stacks, language())), language=None)


def _timeline(incident: Incident, now: float) -> None:
    """What became of it, and what people said; of one that an older version kept, as the database has it."""
    kept = shared().cases.history(incident.id)
    changes = [_entry(incident, event) for event in incident.history]
    for change in kept:
        if not changes or change.what not in ("open", "worse", "better", "resolved"):
            told = (_what(change.what, change.text), change.who, _said(change.what, change.text))
            changes.append((change.at, *told))
    if not incident.history and not kept:
        changes.append((incident.opened_at, say("what_open"), "", ""))
        if incident.resolved_at is not None:
            how = incident.resolution
            changes.append((incident.resolved_at, _what("resolved", how), "", _said("resolved", how)))
    changes.sort(key=lambda entry: entry[0])
    st.markdown(f"#### {say('timeline')}")
    st.dataframe(
        pd.DataFrame(
            {
                say("time_of_day"): [formats.clock(at, zone(), now) for at, *_ in changes],
                say("state"): [cell(what) for _, what, *_ in changes],
                say("who"): [cell(who) for *_, who, _ in changes],
                say("note"): [cell(text) for *_, text in changes],
            }
        ),
        hide_index=True,
        column_config={say("note"): st.column_config.TextColumn(width="large")},
    )


def _entry(incident: Incident, event: Event) -> tuple[float, str, str, str]:
    """A row of the timeline: when, what, who, and about what."""
    named = verdict.rule_name(event.rule, say, incident.exception if event.rule == incident.rule else "")
    about = named if event.rank is None else f"{named} ({say('rank', event.rank)})"
    if event.what == "closed":
        how = _said("resolved", incident.resolution)
        return event.at, _what("resolved", incident.resolution), "", f"{how}: {about}"
    first = event is incident.history[0]
    what = "what_open" if first else f"what_{event.what}"
    return event.at, say(what), "", about


def _icon(incident: Incident) -> str:
    """A tick only where it was mended, or its run finished in spite of it."""
    if incident.unwatched:
        return ICONS["stale"]
    if incident.outlasted:
        return ICONS["interrupted" if incident.resolution == "run-stopped" else "failed"]
    return ICONS["stalled" if incident.status == "open" else "finished"]


def _what(what: str, text: str) -> str:
    if what == "resolved" and text not in ("", "recovered", "run-finished"):
        return say("what_ended")
    known = ("open", "worse", "better", "resolved", "acknowledged", "note")
    return say(f"what_{what}") if what in known else what


def _said(what: str, text: str) -> str:
    known = ("recovered", "run-finished", "run-failed", "run-stopped", "unmended", "unknown")
    return say(f"resolution_{text}") if what != "note" and text in known else text


def _sent(state: str) -> str:
    """What became of a message (`stallwatch_alerts.delivery.outbox`)."""
    known = ("waiting", "sent", "given-up", "withdrawn")
    return say(f"delivery_{state}") if state in known else state


def _deliveries(incident: Incident, now: float) -> None:
    found = shared().cases.deliveries(incident)
    if not found:
        return
    st.markdown(f"#### {say('deliveries')}")
    st.dataframe(
        pd.DataFrame(
            {
                say("chat"): [cell(one.name) for one in found],
                say("state"): [_sent(one.state) for one in found],
                say("sent"): [formats.clock(one.sent_at, zone(), now) for one in found],
                say("attempts"): [one.attempts for one in found],
                say("reason"): [cell(one.reason) for one in found],
                say("rule_title"): [cell(one.title) for one in found],
            }
        ),
        hide_index=True,
    )
