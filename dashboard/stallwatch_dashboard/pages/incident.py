"""Draw one incident: its impact and fixes, its timeline, evidence, stacks, and users' notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import pandas as pd
import streamlit as st
from msgspec.structs import replace
from rich.cells import cell_len

from stallwatch_dashboard import formats, verdict
from stallwatch_dashboard.data.incident_store import NotKept
from stallwatch_dashboard.data.overview import began, lasted
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.common import (
    ICONS,
    MOST_EVIDENCE,
    catalogue,
    chosen_row,
    draw_verdict,
    duration,
    language,
    page,
    reader,
    render,
    say,
    say_or,
)
from stallwatch_dashboard.pages.signin import may_operate
from stallwatch_dashboard.safetext import cell, markdown, verbatim
from stallwatch_dashboard.verdict import describe_state, title_of
from stallwatch_dashboard.words import Reader
from stallwatch_exporter.incident import Event, Incident, Resolution
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.report.stacks import folded
from stallwatch_rules.stacks.records import StallStacks
from stallwatch_rules.stacks.sentences import sentence

_ICONS = {"open": "■", "resolved": "✔"}
_LETTER_PIXELS = 6.0  #: width of a letter in a table
_RUN_WIDTH = 150  #: width in pixels; longer names are shortened to leave room for the titles


def incident_table(
    incidents: Sequence[Incident], reader: Reader, pages: Mapping[str, RulePage], *, with_run: bool = True
) -> pd.DataFrame:
    say = reader.say
    columns = {
        say("state"): [_state(i, reader) for i in incidents],
        say("severity"): [say(f"severity_{i.severity}") for i in incidents],
        say("run_column"): [cell(i.run) for i in incidents],
        say("started"): [reader.clock(began(i)) for i in incidents],
        say("duration"): [reader.seconds(lasted(i, reader.now)) for i in incidents],
        say("step"): [formats.integer(i.step) for i in incidents],
        say("rank_column"): [formats.integer(i.rank) for i in incidents],
    }
    if any(i.hosts for i in incidents):
        columns[say("hosts")] = [_hosts(i) for i in incidents]
    # The longest text is in the last column, so that all other columns are visible.
    columns[say("rule_title")] = [cell(title_of(i, pages.get(i.rule), reader)) for i in incidents]
    if not with_run:
        del columns[say("run_column")]
    return pd.DataFrame(columns)


def _hosts(incident: Incident) -> str:
    """Return the incident's host and, for a run on several hosts, the number of hosts."""
    if not incident.hosts:
        return cell(incident.host)
    return f"{cell(incident.host) or formats.NOTHING} / {len(incident.hosts)}"


def draw_incidents(
    incidents: Sequence[Incident], *, key: str, with_run: bool = True, height: int | Literal["auto"] = "auto"
) -> None:
    """Draw a table of incidents. Store the incident that the user selects, so that the page opens it."""

    def remember() -> None:
        if (chosen := chosen_row(key, incidents)) is not None:
            st.session_state["open_incident"] = chosen.id

    shown = incident_table(incidents, reader(), catalogue(shared().settings.rules).pages, with_run=with_run)
    longest = max(map(cell_len, shown[say("state")]), default=0)
    st.dataframe(
        shown,
        hide_index=True,
        key=key,
        on_select=remember,
        selection_mode="single-row",
        height=height,
        column_config={
            say("run_column"): st.column_config.Column(width=_RUN_WIDTH),
            say("state"): st.column_config.Column(width=16 + round(_LETTER_PIXELS * longest)),
        },
    )
    if "open_incident" in st.session_state:
        st.rerun()


def _state(incident: Incident, reader: Reader) -> str:
    icon = "open" if incident.outlasted or incident.unwatched else incident.status
    by_run = incident.resolution in ("run-failed", "run-stopped")
    shown = reader.render(incident.run_ending) if by_run else describe_state(incident, reader)
    return f"{_ICONS[icon]} {shown}"


def missing() -> bool:
    """Return whether the database of incidents cannot be read. If so, also show the reason."""
    why = shared().cases.unreadable()
    if why is not None:
        st.warning(markdown(say("incidents_unreadable", why)), icon=":material/warning:")
    return why is not None


def draw_incident(key: str) -> None:
    """Draw the page of the incident with this ID. While the incident is open, redraw it every few seconds."""
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
    if (incident := source.incident(key)) is None:
        return
    pages = catalogue(source.settings.rules).pages
    draw_verdict(verdict.of_incident(incident, pages, reader()), icon=_icon(incident))
    st.page_link(
        page("run"),
        label=f"{say('to_the_run')}{say('colon')} {markdown(incident.run)}",
        icon=":material/monitoring:",
        query_params={"run": incident.run},
    )
    left, right = st.columns(2, gap="medium")
    with left:
        _timeline(incident)
    with right:
        _deliveries(incident)
    if len(incident.evidence) > MOST_EVIDENCE:  # otherwise the verdict shows all evidence
        st.markdown(f"#### {say('evidence')}")
        st.code(verbatim("\n".join(map(render, incident.evidence))), language=None, wrap_lines=True)
    if incident.stacks is not None:
        st.markdown(f"#### {say('stacks')}")
        draw_stacks(incident.stacks, say("asked_for", duration(incident.stacks.seconds)))


def draw_stacks(stacks: StallStacks, about: str = "") -> None:
    """Draw the stacks of the ranks, after a sentence that says where in the code the ranks are."""
    st.text(verbatim(render(sentence(stacks))))
    if about:
        st.caption(about)
    st.code(verbatim(folded(stacks, language())), language=None)


def _timeline(incident: Incident) -> None:
    """Draw the changes to an incident and the users' notes."""
    # If an earlier version stored the incident, `incident.history` is empty, and only the store contains the
    # changes. The store always contains the notes.
    kept = shared().cases.history(incident.id)
    changes = [_entry(incident, event) for event in incident.history]
    for change in kept:
        if not changes or change.what not in ("open", "worse", "better", "resolved"):
            what, about = _what(change.what, change.text), _outcome(incident, change.what, change.text)
            changes.append((change.at, what, change.who, about))
    if not incident.history and not kept:
        changes.append((incident.opened_at, say("what_open"), "", ""))
        if incident.resolved_at is not None:
            how = _what("resolved", incident.resolution)
            changes.append((incident.resolved_at, how, "", render(incident.closing)))
    changes.sort(key=lambda entry: entry[0])
    clock = reader().clock
    st.markdown(f"#### {say('timeline')}")
    heads = [say("time_of_day"), say("state"), say("who"), say("note")]
    st.dataframe(
        pd.DataFrame([(clock(at), *map(cell, texts)) for at, *texts in changes], columns=heads),
        hide_index=True,
        column_config={say("note"): st.column_config.TextColumn(width="large")},
    )


def _entry(incident: Incident, event: Event) -> tuple[float, str, str, str]:
    """Return a row of the timeline: the time, the change, the person who made it, and the rule and rank."""
    named = verdict.rule_name(event.rule, say, incident.exception if event.rule == incident.rule else "")
    about = named if event.rank is None else f"{named} ({say('rank', event.rank)})"
    if event.what == "closed":
        how = _what("resolved", incident.resolution)
        return event.at, how, "", f"{render(incident.closing)}: {about}"
    what = "stalled" if (event.what, event.kind) == ("opened", "stall") else f"what_{event.what}"
    return event.at, say("what_open" if event is incident.history[0] else what), "", about


def _icon(incident: Incident) -> str:
    """Return the incident's icon: a check mark only if the problem was fixed or the run still finished."""
    if incident.unwatched:
        return ICONS["stale"]
    if incident.outlasted:
        return ICONS["interrupted" if incident.resolution == "run-stopped" else "failed"]
    return ICONS["stalled" if incident.status == "open" else "finished"]


def _what(what: str, text: str) -> str:
    if what == "resolved" and text not in ("", "recovered", "run-finished"):
        return say("what_ended")
    return say_or(f"what_{what}", what)


def _outcome(incident: Incident, what: str, text: str) -> str:
    if what != "resolved" or not text or text not in get_args(Resolution):
        return text
    return render(replace(incident, resolution=text).closing)


def _deliveries(incident: Incident) -> None:
    found = shared().cases.deliveries(incident)
    if not found:
        return
    clock = reader().clock
    st.markdown(f"#### {say('deliveries')}")
    st.dataframe(
        {
            say("chat"): [cell(delivery.name) for delivery in found],
            say("state"): [say_or(f"delivery_{delivery.state}", delivery.state) for delivery in found],
            say("sent"): [clock(delivery.sent_at) for delivery in found],
            say("attempts"): [delivery.attempts for delivery in found],
            say("reason"): [cell(delivery.reason) for delivery in found],
            say("rule_title"): [cell(delivery.title) for delivery in found],
        },
        hide_index=True,
    )


_HOURS = (1, 4, 24, 168)


def draw_actions(incident: Incident) -> None:
    """Draw the operators' controls for an incident in the database. Other users see a note instead."""
    cases = shared().cases
    if cases.incident(incident.id) is None:
        return
    if not may_operate():
        st.caption(say("operators_act"))
        return
    now = shared().clock()
    with st.container(border=True):
        person = _person()
        first, second = st.columns(2, gap="medium", vertical_alignment="bottom")
        with first:
            _acknowledge(incident, person, now)
        with second:
            _silence(incident, person, now)
        with st.form("note", clear_on_submit=True, border=False):
            text = st.text_area(say("your_note"), max_chars=1000, key="note_text", height=80)
            if st.form_submit_button(say("add_note"), icon=":material/edit_note:") and text.strip():
                _do(lambda: cases.note(incident.id, person, text.strip(), now))


def _person() -> str:
    """Return the acting person's name: the email address of the login or, without a login, a typed name."""
    signed_in = st.user.get("email") if shared().settings.login.on else None
    if isinstance(signed_in, str):
        return signed_in
    return st.text_input(say("your_name"), max_chars=80, key="person").strip()


def _acknowledge(incident: Incident, person: str, now: float) -> None:
    cases = shared().cases
    if cases.acknowledged(incident.id):
        st.caption(say("is_acknowledged"))
    elif (incident.status == "open" or incident.unwatched) and st.button(
        say("acknowledge"), icon=":material/check:", key="acknowledge"
    ):
        _do(lambda: cases.acknowledge(incident.id, person, now))


def _silence(incident: Incident, person: str, now: float) -> None:
    cases = shared().cases
    if found := cases.silences(incident, now):
        until = max(found, key=lambda silence: silence.ends_at)
        st.caption(markdown(say("silenced_until", reader().clock(until.ends_at))))
        if st.button(say("end_silence"), icon=":material/notifications_active:", key="end_silence"):
            _do(lambda: cases.end_silences(found, now))
        return
    if incident.run_is_over:  # no further message can follow
        return
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    hours = left.selectbox(
        say("silence_for"),
        _HOURS,
        format_func=lambda h: duration(h * 3600.0),
        key=f"silence_hours-{language()}",
    )
    if right.button(say("silence"), icon=":material/notifications_off:", key="silence"):
        _do(lambda: cases.silence(incident, hours * 3600.0, person, now))


def _do(act: Callable[[], object]) -> None:
    """Run an action if the user is an operator. Then, redraw the page or show the error."""
    if not may_operate():
        return
    try:
        act()
    except NotKept as error:
        st.error(markdown(say("not_done", error)), icon=":material/error:")
        return
    st.rerun()
