"""Draw one live run: its verdict, metrics, charts, incidents, comparison with another run, and log."""

from __future__ import annotations

from datetime import datetime, timedelta

import streamlit as st

from stallwatch_dashboard import formats, verdict
from stallwatch_dashboard.charts.base import Span
from stallwatch_dashboard.charts.by_step import compared
from stallwatch_dashboard.charts.lag import blamed_hosts, is_folded, silent_hosts
from stallwatch_dashboard.charts.run import BOARD, OPTIONAL, WIDE, ranks_of_host
from stallwatch_dashboard.data import log_copies
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.data.overview import RunRow, began, later_attempt
from stallwatch_dashboard.data.source import shared
from stallwatch_dashboard.pages.board import draw_board
from stallwatch_dashboard.pages.common import (
    ICONS,
    catalogue,
    draw_verdict,
    duration,
    head,
    into_address,
    language,
    look,
    page,
    reader,
    render,
    say,
    switch,
    zone,
)
from stallwatch_dashboard.pages.incident import draw_incidents, draw_stacks
from stallwatch_dashboard.safetext import cell, markdown, plain, verbatim
from stallwatch_dashboard.verdict import name_hosts, rule_name
from stallwatch_exporter.incident import Incident
from stallwatch_rules.text.digest import fold_ranks

_FRESH_SECONDS = 4.0  #: metrics up to this age, in seconds, are shown without their age
_LAST_WORDS_SECONDS = 15.0  #: maximum delay, in seconds, of the last metrics, lines, and incidents
_FEW_LINES, _MANY_LINES = 15, 1000
_SPANS = (10, 60, 600)  #: choices for the seconds shown before and after a time


def _choose() -> str | None:
    """Return the selected run, the run in the address, or the newest run. If there is none, return None."""
    names = shared().run_names()
    state, in_address = st.session_state, _named()
    # If the address changed, the user followed a link or used the browser's back button.
    linked = in_address if in_address != state.get("address_run") else None
    if linked is not None or state.get("chosen_run") not in names:
        wanted = linked or in_address or (names[0] if names else None)
        state["chosen_run"] = wanted if wanted in names else None
    chosen = st.selectbox(
        say("choose_run"),
        names,
        index=0 if state["chosen_run"] else None,  # hides the clear button while a run is shown
        key="chosen_run",
        format_func=plain,
        label_visibility="collapsed",
        placeholder=say("choose_run"),
    )
    if chosen:
        into_address("run", chosen)
    state["address_run"] = chosen or in_address
    return chosen


def _key(key: str) -> str:
    """Return the key of a widget for the current language.

    If the key were the same in both languages, the browser would keep the widget's text in the previous
    language.
    """
    return f"{key}-{language()}"


def _named() -> str | None:
    """Return the run that the address names, either directly or by naming one of its incidents.

    This page's address contains an incident if the user goes back from the incident's page. `st.switch_page`
    (Streamlit 1.67) writes the target page's query into the current address before it opens the target page.
    """
    query = st.query_params.to_dict()
    if "run" not in query and (key := query.pop("incident", None)) is not None:
        if (incident := shared().incident(key)) is not None:
            query["run"] = incident.run
        # All values are set at once, because each change adds an entry to the browser's history.
        st.query_params.from_dict(query)
    return query.get("run")


@st.fragment(run_every="2s")
def _awaited(run: str | None) -> None:
    """Show that there is no data yet and rerun the page as soon as the run appears."""
    names = shared().run_names()
    if run in names or (names and run is None):
        st.rerun()
    st.markdown(f"### {say('not_yet' if run else 'no_runs')}")
    if run:
        st.text(verbatim(run))
    st.write(say("no_runs_next"))
    st.code("stallwatch run -- torchrun --nproc-per-node 8 train.py", language=None)


def _about(row: RunRow, now: float) -> list[str]:
    """Return facts about the run: its host, its duration, and the age of the shown metrics."""
    facts = []
    # If incidents list hosts, the verdict already shows the number of hosts.
    if row.host and not any(incident.hosts for incident in row.open_incidents):
        facts = [say("hosts_reported", len(row.hosts)) if row.hosts else row.host]
    if (seconds := row.seconds(now)) is not None:
        facts.append(say("going_for" if row.ended_at is None else "took", duration(seconds)))
    if row.ended_at is None and row.seen is not None and now - row.seen > _FRESH_SECONDS:
        facts.append(say("scraped_ago", duration(now - row.seen)))
    return facts


def _later(run: str) -> None:
    """Draw a link to the newest attempt of the run, unless this run is the newest attempt."""
    if (newest := later_attempt(run, shared().run_names())) is not None:
        st.page_link(
            page("run"),
            label=markdown(say("later_attempt", newest)),
            icon=":material/update:",
            query_params={"run": newest},
        )


def _figures(row: RunRow, found: RunFrames, now: float) -> None:
    """Draw the main metrics of the run, each with a second value for comparison."""
    over = row.ended_at is not None
    left = None if row.seconds_left is None else say("left", duration(row.seconds_left))
    base_line = say("baseline", duration(row.baseline_seconds)) if row.baseline_seconds else None
    waiting = max(0.0, now - found.last_step_at) if found.last_step_at and not over else None
    limit = None
    if not over and not found.threshold.empty:
        limit = say("threshold_is", duration(found.threshold["v"].iloc[-1]))
    rate = say("per_step", f"{row.invalidations / row.step:.2g}") if row.step and row.invalidations else None
    seen_at, held = (found.last_memory() or (None, None)) if over else (None, row.memory_bytes)
    kind = say(found.memory_kind) if held and found.memory_kind else None
    if kind and seen_at is not None:
        kind = say("memory_seen_at", kind, reader().clock(seen_at))
    figures = [
        ("step", formats.steps(row.step, row.total_steps), left),
        ("loss", formats.number(row.loss), None),
        ("step_time", duration(row.step_seconds), base_line),
        ("no_step_for", duration(waiting), limit),
        ("memory", formats.byte_size(held), kind),
    ]
    if row.invalidations:  # most runs have none, because they do not use ZeRO-3
        figures.insert(-1, ("invalidations", formats.integer(row.invalidations), rate))
    for column, (name, value, beneath) in zip(st.columns(len(figures)), figures, strict=True):
        column.metric(say(name), value, beneath, delta_color="off")


def _charts(row: RunRow, found: RunFrames, incidents: list[Incident], now: float) -> None:
    span = _span(row, found, incidents, now)
    host = _open_host(row, found, incidents)
    ready = [chart for chart in BOARD if chart.drawable(found)]
    if is_folded(found.hosts):  # the heat map of the selected host follows the heat map of all hosts
        maps = [chart for chart in ready if chart.key == "lag"]
        maps += [ranks_of_host(host)] if host else []
        ready = maps + [chart for chart in ready if chart.key != "lag"]
    drawn = [
        (chart.key, say(chart.title, plain(host)), chart.draw(found, incidents, span, look(), say))
        for chart in ready
    ]
    if drawn and (clicked := draw_board(drawn, key=f"board-{row.run}", say=say, wide=WIDE)):
        st.session_state["open_incident"] = clicked
        st.rerun()
    missing = [say(chart.title) for chart in BOARD if chart not in ready and chart.key not in OPTIONAL]
    if missing:
        st.caption(say("no_numbers_of_this", say("list_comma").join(missing)))


def _open_host(row: RunRow, found: RunFrames, incidents: list[Incident]) -> str:
    """Draw the facts about the hosts of a multi-host run and return the host whose ranks to draw.

    The returned host is the host that the user selected (stored in the address). If the user selected no
    host, it is the blamed host.
    """
    hosts = list(dict.fromkeys([*(found.hosts[rank] for rank in sorted(found.hosts)), *row.hosts]))
    if len(hosts) < 2:
        return ""
    silent, blamed = silent_hosts(hosts, found, incidents), blamed_hosts(incidents, found.hosts)
    counts = (len(hosts), len(found.hosts))
    facts = [say("hosts_of_run", *counts) if found.hosts else say("hosts_reported", len(hosts))]
    for key, some in (("hosts_silent", silent), ("hosts_blamed", blamed)):
        if some:
            facts.append(name_hosts(key, some, say))
    left, right = st.columns([6, 4], vertical_alignment="center")
    left.caption(markdown(" · ".join(facts)))
    with st.expander(say("hosts")):
        _hosts(row.run, found, hosts, blamed, silent)
    if not is_folded(found.hosts):
        return ""
    given, names = st.query_params.get("host"), [say("no_ranks"), *hosts]
    wanted = given if given in hosts else next(iter(blamed), "")
    chosen = right.selectbox(
        say("ranks_of_host"),
        names,
        index=names.index(wanted) if wanted else 0,
        key=_key(f"host-{row.run}"),
        format_func=lambda name: plain(say("ranks_of", name) if name in hosts else name),
        label_visibility="collapsed",
    )
    into_address("host", chosen if chosen in hosts and chosen not in blamed[:1] else None)
    return chosen if chosen in hosts else ""


def _hosts(run: str, found: RunFrames, hosts: list[str], blamed: list[str], silent: list[str]) -> None:
    """Draw a table with a row for each host. Hosts that need attention come first."""
    hosts = sorted(hosts, key=lambda host: (host not in blamed, host not in silent))
    ranks: dict[str, list[int]] = {}
    for rank, host in found.hosts.items():
        ranks.setdefault(host, []).append(rank)
    folders: dict[str, list[str]] = {}
    for agent in shared().agents(run):
        folders.setdefault(agent.info.host, []).append(str(agent.folder))
    ages = [
        max(0.0, shared().clock() - found.seen_at[host]) if host in found.seen_at else None for host in hosts
    ]
    states = ["silent" if host in silent else "holds_up" if host in blamed else "answers" for host in hosts]
    st.dataframe(
        {
            say("host"): [cell(host) for host in hosts],
            say("state"): [say(state) for state in states],
            say("ranks"): [fold_ranks(ranks.get(host, ())) for host in hosts],
            say("last_answer"): [formats.NOTHING if age is None else duration(age) for age in ages],
            say("folder"): [cell(", ".join(folders.get(host, []))) for host in hosts],
        },
        hide_index=True,
    )


def _span(row: RunRow, found: RunFrames, incidents: list[Incident], now: float) -> Span:
    firsts = [f["t"].min() for f in (found.steps, found.loss, found.memory) if not f.empty]
    start = min([*firsts, *map(began, incidents)], default=row.started_at or now)
    last_sign = row.seen if row.state == "stale" else None
    return Span(start, max(row.ended_at or now, start + 1), live=row.ended_at is None, seen_at=last_sign)


def _stacks(incidents: list[Incident]) -> None:
    """Show where in the code the ranks were at each stall, newest stall first."""
    for incident in sorted(incidents, key=lambda incident: -incident.opened_at):
        if incident.stacks is None:
            continue
        with st.expander(say("where_ranks_are", reader().clock(incident.opened_at))):
            draw_stacks(incident.stacks)


def _live(run: str, known: int) -> None:
    source = shared()
    row, now = source.row(run), source.clock()
    if row is None or len(source.run_names()) != known:
        st.rerun()  # a run appeared or disappeared, so the list of runs at the top must change
    found, incidents = source.frames(run), source.incidents(run)
    pages = catalogue(source.settings.rules).pages
    shown = verdict.of_run(row, pages, reader(), found.last_step_at)
    # Containers that always exist keep all following elements in place, so charts are updated, not recreated.
    with st.container():
        draw_verdict(shown, icon=ICONS[row.state], facts=_about(row, now))
    with st.container():
        _figures(row, found, now)
    with st.container():
        if found.rebuilt:
            facts = [say("from_copies"), *(render(note) for note in found.notes)]
            if row.ended_at is None:
                unread = (target for target in source.targets() if target.run == run and target.error)
                facts += [say("metrics_unread", target.url, render(target.error or "")) for target in unread]
            st.caption(markdown(" ".join(facts)))
    with st.container():
        _charts(row, found, incidents, now)
    with st.container():
        if incidents:
            st.markdown(f"#### {say('incidents')}")
            draw_incidents(incidents, key=f"incidents-{run}", with_run=False)
            _stacks(incidents)


def _log(run: str) -> None:
    found = shared().copies(run)
    left, middle, right = st.columns([6, 1.2, 1.2], vertical_alignment="center")
    left.markdown(f"#### {say('logs')}")
    if not found:
        st.caption(say("no_log"))
        return
    names = [_copy_name(copy) for copy in found]
    more = middle.toggle(say("more_lines"), key=f"more-{run}")
    chosen = right.selectbox(
        say("logs"),
        range(len(found)),
        format_func=names.__getitem__,
        key=_key(f"log-{run}"),
        label_visibility="collapsed",
    )
    text = log_copies.tail(found[chosen].path, _MANY_LINES if more else _FEW_LINES, zone())
    st.code(text or " ", language=None, height=600 if more else "content")


def _comparison(run: str) -> None:
    """Draw charts that compare the run with a second run, which the user selects and the address stores."""
    others = [name for name in shared().run_names() if name != run]
    if not others:
        return
    given = st.query_params.get("with")
    left, right = st.columns([6, 4], vertical_alignment="center")
    left.markdown(f"#### {say('compare')}")
    other = right.selectbox(
        say("compare_with"),
        others,
        index=others.index(given) if given in others else None,
        key=f"compare-{run}",
        format_func=plain,
        placeholder=say("compare_with"),
        label_visibility="collapsed",
    )
    into_address("with", other)
    if other:
        st.fragment(_compared, run_every="5s")(run, other)


def _compared(run: str, other: str) -> None:
    source = shared()
    drawn = compared((run, other), source.frames(run), source.frames(other), look(), say)
    if drawn:
        draw_board(drawn, key=f"compared-{run}-{other}", say=say)
    else:
        st.caption(say("nothing_to_compare"))


def _moment(run: str) -> None:
    """Draw the log lines around a time and controls for the time."""
    found = shared().copies(run)
    if not found or not st.toggle(say("log_around"), key=f"around-{run}"):
        return
    incidents = shared().incidents(run)
    first, second, third, fourth, fifth = st.columns([3, 1.4, 1.4, 1.6, 3], vertical_alignment="bottom")
    choices: list[Incident | None] = [*incidents, None]
    chosen = first.selectbox(say("moment"), choices, format_func=_moment_name, key=_key(f"moment-{run}"))
    at = _beginning(run, chosen)
    if chosen is None:
        usual = _local(at).time().replace(microsecond=0)
        at = _typed_time(run, second.time_input(say("time_of_day"), usual, step=60, key=f"time-{run}"))
    seconds = third.selectbox(
        say("span"),
        _SPANS,
        index=1,
        format_func=lambda s: f"± {duration(s)}",
        key=_key(f"span-{run}"),
    )
    ranks = {_copy_name(copy): copy for copy in found}
    rank = fourth.selectbox(say("ranks"), [say("all_ranks"), *ranks], key=_key(f"rank-{run}"))
    search = fifth.text_input(say("search_lines"), key=f"search-{run}", icon=":material/search:")
    chosen_copies = [ranks[rank]] if rank in ranks else found
    lines = log_copies.matching(log_copies.lines_around(chosen_copies, at, seconds), search)
    folded = log_copies.fold(lines)
    st.caption(say("lines_folded", len(lines), len(folded), formats.clock(at, zone())))
    shown = log_copies.drawn(folded, at, zone(), "·")
    st.code(shown or say("no_lines_here"), language=None, height=420)


def _moment_name(incident: Incident | None) -> str:
    if incident is None:
        return say("a_time")
    name = plain(rule_name(incident.rule, say, incident.exception))
    return f"{formats.clock(incident.opened_at, zone())} {name}"


def _copy_name(copy: log_copies.LogCopy) -> str:
    name = say("rank_unknown") if copy.rank is None else say("rank", copy.rank)
    return plain(say("on_host", name, copy.host)) if copy.host else name


def _beginning(run: str, incident: Incident | None) -> float:
    """Return the time when progress stopped before the incident, or the run's end if there is no incident."""
    if incident is not None:
        return incident.quiet_since
    info = shared().info(run)
    return (info.ended_at or info.updated_at) if info is not None else shared().clock()


def _local(time: float) -> datetime:
    return datetime.fromtimestamp(time, zone())


def _typed_time(run: str, typed: object) -> float:
    """Return the latest Unix time within the run at which the time of day was `typed`."""
    end = _local(_beginning(run, None)) + timedelta(minutes=1)
    moment = datetime.combine(end.date(), typed, tzinfo=end.tzinfo)  # type: ignore[arg-type]
    return (moment if moment <= end else moment - timedelta(days=1)).timestamp()


def _over(run: str) -> bool:
    info = shared().info(run)
    return bool(info and info.ended_at and shared().clock() - info.ended_at > _LAST_WORDS_SECONDS)


if "open_incident" in st.session_state:
    switch("incidents", incident=st.session_state["open_incident"])
_run = head(say("run"), _choose)
if _run is None:
    _awaited(st.query_params.get("run"))
else:
    # An ended run is drawn only once.
    _every = None if _over(_run) else "2s"
    _later(_run)
    st.fragment(_live, run_every=_every)(_run, len(shared().run_names()))
    _comparison(_run)
    st.fragment(_log, run_every=_every)(_run)
    _moment(_run)
