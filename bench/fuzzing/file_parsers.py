"""Fuzz targets for files, records from the probe, messages, settings, pages, and stored records."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
from collections.abc import Iterator

import msgspec

from fuzzing import samples as of
from fuzzing.line_parsers import (
    Broken,
    file_of,
    from_system,
    own_folder,
    parse_as_html,
    size_of_lines,
    text_of,
)
from stallwatch.config import routes, values
from stallwatch.config.keys import KEYS
from stallwatch.config.loading import load
from stallwatch_alerts.channels.addresses import apprise_url
from stallwatch_alerts.delivery.pacing import limits_of
from stallwatch_alerts.masking import hide_secrets, mask_url
from stallwatch_alerts.relay.incident_states import incident_states
from stallwatch_alerts.relay.webhook import read_notification
from stallwatch_alerts.store import _readable
from stallwatch_dashboard.data import log_copies, metrics_page
from stallwatch_dashboard.data.source import final_diagnosis
from stallwatch_dashboard.uploads.reading import safe_name
from stallwatch_exporter.checkpoints.checking import check_checkpoint
from stallwatch_exporter.checkpoints.formats import tensor_names
from stallwatch_exporter.cluster.signing import Malformed, Signer, read_proof, read_reports
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.postmortem.recorded import recorded, with_kept, with_recorded
from stallwatch_exporter.rings.probing import RankProcess, without_secrets
from stallwatch_exporter.rings.reader import RingReader
from stallwatch_exporter.runs.copies import RankCopies, parse_record
from stallwatch_exporter.runs.naming import sanitise
from stallwatch_exporter.runs.runfolder import AgentInfo, agent_alive, list_runs, read_info, read_record
from stallwatch_exporter.stacks import gathering, queries
from stallwatch_exporter.tailing.follow import POSITIONS
from stallwatch_exporter.tailing.tail import Position
from stallwatch_exporter.tailing.tailset import TailSet
from stallwatch_exporter.watching.incidents import read_incidents
from stallwatch_exporter.watching.probe_events import Invalidations, concern_match
from stallwatch_lint.check_run import check_run
from stallwatch_lint.parse import parse_accelerate, parse_json
from stallwatch_lint.script import Script, parse_script
from stallwatch_logs.archives import TarFile, zip_members
from stallwatch_logs.decompress import expanded, kind_of
from stallwatch_logs.inputs import InputError, Limits, Meter
from stallwatch_logs.json_files import notebook_lines, trainer_state_lines
from stallwatch_logs.log_files import LogFile, expand
from stallwatch_logs.rank_files import read_rank_files
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import parse_page
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report import markdown
from stallwatch_rules.report.html import to_html
from stallwatch_rules.report.json import to_json
from stallwatch_rules.stacks.concluding import with_stacks
from stallwatch_rules.stacks.flight import read_recorder
from stallwatch_rules.stacks.reading import from_faulthandler, from_probe, from_py_spy
from stallwatch_rules.text.redact import redact

_MOST_EXPANDED = 1024 * 1024


# ---------------------------------------------------------------- files


def parse_decompress(data: bytes) -> None:
    for _ in _decompressed(data):
        pass


def _decompressed(data: bytes) -> Iterator[bytes]:
    limits = Limits(members=20, expanded=_MOST_EXPANDED)
    return expanded(io.BytesIO(data), kind_of(data[:512]), Meter(limits))


def size_unpacked(data: bytes) -> int:
    """Return the size of the unpacked input, up to a limit. A few bytes can have a large unpacked size."""
    sizes = [size_of_lines(data)]
    for portions in (_decompressed, _unpacked):
        sizes.append(0)
        with contextlib.suppress(InputError):
            for portion in portions(data):
                sizes[-1] += size_of_lines(portion)
    return max(sizes)


def parse_archives(data: bytes) -> None:
    for _ in _unpacked(data):
        pass


def _unpacked(data: bytes) -> Iterator[bytes]:
    limits = Limits(members=20, expanded=_MOST_EXPANDED)
    kind = kind_of(data[:512])
    if kind == "zip":
        members = zip_members(lambda: io.BytesIO(data), len(data), limits)
    else:
        members, problem = TarFile(lambda: io.BytesIO(data), kind, limits).members()
        if problem is not None:
            str(problem.problem("a.tar"))
    for member in members[:5]:
        try:
            yield from member.chunks()
        except InputError as error:
            str(error.problem(member.name))


def parse_log_files(data: bytes) -> None:
    name = {"zip": "a.zip", "tar": "a.tar", "gzip": "a.log.gz"}.get(kind_of(data[:512]), "a.log")
    path = file_of(data, f"found/{name}")
    files, _ = expand([path], limits=Limits(members=20, expanded=_MOST_EXPANDED))
    for file in files[:5]:
        for _ in file.chunks([], []):
            pass
    path.unlink()


def parse_json_logs(data: bytes) -> None:
    for lines in (notebook_lines, trainer_state_lines):
        for _ in lines(iter([data[:100], data[100:]])):
            pass


def parse_container_copies(data: bytes) -> None:
    for line in data.split(b"\n"):
        parse_record(line)
    path = file_of(data, "copies/ranks/rank0.log")
    log_copies.tail(path)
    copy = log_copies.LogCopy(path, 0)
    found = log_copies.lines_around([copy], 1.7e9, 1e6)
    log_copies.drawn(log_copies.fold(found), 1.7e9, None, "?")


def parse_copied(data: bytes) -> None:
    folder = own_folder() / "written"
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    copies = RankCopies(folder, redact, lambda _: None, max_bytes=1e6)
    for at in range(0, len(data), 700):
        copies.write("out", "stdout", data[at : at + 700], 1.7e9 + at)
    copies.flush(1.8e9, everything=True)
    for name in copies.files:
        (folder / name).unlink()


def parse_rank_files(data: bytes) -> None:
    found: list[LogFile] = []
    path = file_of(data, "dumps/nccl_trace_rank_3")
    expand([path], rank_files=found)
    read_rank_files(found, [])
    path.unlink()


def parse_checkpoints(data: bytes) -> None:
    name = "pytorch_model.bin" if data[:1] in (b"P", b"\x80", b"c") else "model.safetensors"
    path = file_of(data, f"checkpoint/{name}")
    check_checkpoint(path.parent)
    tensor_names(path)
    path.unlink()


def parse_checkpoint_index(data: bytes) -> None:
    check_checkpoint(file_of(data, "indexed/model.safetensors.index.json").parent)


def parse_tail_state(data: bytes) -> None:
    path = file_of(data, f"tail/{POSITIONS}")
    positions = read_record(path, dict[str, Position]) or {}
    log = file_of(b"step 1\n", "tail/a.log")
    files = TailSet([str(log)], {str(log): position for position in positions.values()})
    files.discover()
    list(files.poll())
    files.close()


# ---------------------------------------------------------------- records of the probe


def ring(data: bytes) -> None:
    reader = RingReader(file_of(data, "r-3-1.ring"), lambda: 1.8e9)
    try:
        reader.read(16)
        reader.latest_step_at()
        reader.read()
    finally:
        reader.close()


@functools.cache
def parse_process() -> RankProcess:
    return RankProcess(file_of(of.ring(), "e-3-1.ring"))


def parse_events(data: bytes) -> None:
    file_of(data, "e-3-1.jsonl")
    process, counts = parse_process(), Invalidations()
    process._events_until = 0
    for place, event in enumerate(process.events(), 1):
        without_secrets(event)
        concern_match(event, place)
        counts.named(event, place)
    queries.has_left(process.path, well=True)


def parse_answers(data: bytes) -> None:
    file_of(data, "e-3-1.answer")
    answer = queries.answer(parse_process().path, "q", ".answer")
    if answer is not None:
        from_probe(answer)
        gathering._numbers(answer.get("counters"))
        read_recorder(answer)


def parse_faulthandler(data: bytes) -> None:
    from_faulthandler(text_of(data))


def parse_py_spy(data: bytes) -> None:
    from_py_spy(data)


# ---------------------------------------------------------------- messages, settings, pages


@functools.cache
def parse_incidents() -> list[Incident]:
    return [msgspec.json.decode(line, type=Incident) for line in of.stored("incidents.jsonl")[0].splitlines()]


def parse_webhook(data: bytes) -> None:
    incident_states(read_notification(data).alerts, lambda _: parse_incidents())


def parse_post(data: bytes) -> None:
    for encoding in ("", "gzip", "zstd"):
        with contextlib.suppress(Malformed):
            read_reports(data, encoding, "5f")
    proof = read_proof(text_of(data))
    if proof is not None:
        Signer(b"secret", proof.key).is_signed("POST", "/", proof)


def parse_settings(data: bytes) -> None:
    load(file_of(data, "stallwatch.toml"), {}, {"STALLWATCH_HOME": str(own_folder())}, own_folder())


def parse_variables(data: bytes) -> None:
    text = from_system(data).replace("\0", "")
    for key in KEYS:
        try:
            values.from_text(key, text, own_folder())
        except values.BadValue:
            continue


def parse_routes(data: bytes) -> None:
    try:
        routes.routes_from(json.loads(data))
    except (ValueError, RecursionError):
        return


def parse_urls(data: bytes) -> None:
    text = from_system(data)
    mask_url(text)
    apprise_url(text)
    limits_of(text)
    hide_secrets("could not reach " + text[:200], text)


def parse_names(data: bytes) -> None:
    text = from_system(data)
    if re.search(r"[/\0]", safe_name(text, 1)) or re.search(r"[/\0]", sanitise(text)):
        raise Broken("a name contains a slash or a null character")


def parse_rule_page(data: bytes) -> None:
    parse_page(text_of(data), "catalogue/run/fuzz.md")


def parse_lint_json(data: bytes) -> None:
    parsed = parse_json(text_of(data), "ds.json")
    if parsed.config is not None:
        check_run(parsed.config)


def parse_lint_yaml(data: bytes) -> None:
    parsed = parse_accelerate(text_of(data), "accelerate.yaml")
    if parsed.config is not None:
        check_run(parsed.config)


def parse_lint_script(data: bytes) -> None:
    script = parse_script(text_of(data), "train.py")
    if isinstance(script, Script):
        check_run(None, [script])


def parse_metrics_page(data: bytes) -> None:
    metrics_page.parse(text_of(data))


def parse_stored_run(data: bytes) -> None:
    folder = file_of(data, "home/runs/fuzz/agent.json").parent
    info = read_info(folder)
    list_runs(folder.parents[1])
    if isinstance(info, AgentInfo):
        agent_alive(info, 1.8e9)


def parse_stored_incidents(data: bytes) -> None:
    folder = file_of(data, "kept/incidents.jsonl").parent
    file_of(of.stored("agent.json")[0], "kept/agent.json")
    read_incidents(folder)
    known = recorded([folder])
    diagnosis = with_recorded(Diagnosis("healthy"), known)
    if known.stacks is not None:
        with_stacks(diagnosis, known.stacks, Catalogue({}))
    to_json(diagnosis)


def parse_stored_payloads(data: bytes) -> None:
    try:
        payload = json.loads(data)
    except (ValueError, RecursionError):
        return
    _readable([payload])


def parse_stored_report(data: bytes) -> None:
    folder = file_of(data, "report/diagnosis.json").parent
    final_diagnosis(folder)
    known = recorded([folder])._replace(folder=folder)
    diagnosis = with_kept(Diagnosis("healthy"), known)
    to_json(diagnosis)
    parse_as_html(to_html(diagnosis))
    markdown.to_markdown(diagnosis)
