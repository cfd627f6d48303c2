"""Fixtures for all tests: root, packaged rules, isolated state; in CI, no silent skips, and a second try."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from stallwatch_rules.matching.matcher import ENGINE_VARIABLE, Matcher
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue

if TYPE_CHECKING:
    from deadmanswitch import Switch

ROOT = Path(__file__).resolve().parent.parent
ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")
#: Tests that `make test-quick` leaves out: they wait for processes, draw pages, or read long logs.
SLOW = (
    "alerts/delivery/test_faults.py",
    "alerts/delivery/test_order.py",
    "alerts/delivery/test_people.py",
    "alerts/delivery/test_restarts.py",
    "alerts/delivery/test_spool.py",
    "alerts/relay/test_relay_database.py",
    "alerts/test_cluster_store.py",
    "alerts/test_coordinator_service.py",
    "alerts/test_rule_files.py",
    "alerts/test_sink.py",
    "cli/test_cli.py::test_full_disk_behind_the_output_is_reported_without_traceback",
    "cli/test_cli.py::test_modules_of_the_user_replace_no_package",
    "cli/test_deadman_command.py",
    "cli/test_demo.py",
    "cli/test_diagnose_command.py::test_jobs_option_sets_the_number_of_processes",
    "cli/test_diagnose_jobs.py",
    "cli/test_relay_command.py",
    "cli/test_run_command.py",
    "cli/test_stacks.py",
    "cluster/",
    "dashboard/test_access.py::test_secrets_reach_streamlit_without_a_file",
    "dashboard/test_cache.py::test_frames_after_many_refreshes_equal_those_of_a_new_store",
    "dashboard/test_hostile.py",
    "dashboard/test_incident_page.py",
    "dashboard/test_launch.py",
    "dashboard/test_pages.py",
    "dashboard/test_postmortem_jobs.py",
    "dashboard/test_postmortem_page.py",
    "dashboard/test_readiness.py",
    "dashboard/test_scraper.py",
    "dashboard/test_uploads.py",
    "documentation/test_doc_commands.py::test_commands_run",
    "exporter/cluster/test_joining.py",
    "exporter/cluster/test_service.py",
    "exporter/cluster/test_transport.py",
    "exporter/postmortem/test_folders.py",
    "exporter/stacks/test_evidence.py",
    "exporter/stacks/test_reaction.py",
    "exporter/test_capture.py",
    "exporter/test_checkpoint_watch.py",
    "exporter/test_command.py",
    "exporter/test_end_evidence.py",
    "exporter/test_keeper.py",
    "exporter/test_log_reader.py",
    "exporter/test_probing.py",
    "exporter/test_steady_clock.py",
    "exporter/test_tailing.py",
    "exporter/test_wall_clock.py",
    "lint/test_against_packages.py",
    "lint/test_config.py::test_any_configuration_can_be_checked",
    "logs/test_bounded.py",
    "logs/test_engines.py",
    "logs/test_file_reading.py::test_own_processes_give_the_same_diagnosis",
    "logs/test_packed_logs.py",
    "logs/test_sharing.py",
    "logs/test_small_files.py",
    "logs/test_time_limit.py",
    "probe/test_bootstrap.py",
    "probe/test_plain.py",
    "probe/test_stacks.py",
    "rules/diagnosis/test_starts.py::test_starts_in_the_middle_of_a_long_log_are_found",
    "rules/samples/test_samples_whole_logs.py",
    "rules/scan/test_sampled_counts.py",
    "rules/scan/test_sampled_scan.py",
    "security/test_archives.py",
    "security/test_authentication.py",
    "security/test_configuration.py",
    "security/test_connections_dashboard.py",
    "security/test_current_folder.py",
    "security/test_foreign_pickles.py",
    "security/test_host_and_origin.py",
    "security/test_names.py",
    "security/test_secrets.py",
    "security/test_state_files.py",
    "security/test_temporary_files.py",
    "security/test_wrong_in_0_1.py",
    "test_conftest.py",
    "test_release_0_1.py",
    "test_wheel.py",
    "tools/test_docs_site.py",
)
# the checkout whose commands are tested: security/test_wrong_in_0_1.py
if CHECKOUT := os.environ.get("TESTED_CHECKOUT"):
    packages = ("", "alerts", "dashboard", "exporter", "lint", "logs", "rules")
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(CHECKOUT, name)) for name in packages)
# Helpers for the machine that many tests need: ports, processes and a server.
sys.path.append(str(Path(__file__).with_name("machine")))
sys.path.append(str(ROOT / "tools"))
# The duration of an example depends on the load of the machine.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder that all test processes share: filling it takes seconds."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "stallwatch-cache"


@pytest.fixture(scope="session")
def catalogue(cache_folder: Path) -> Catalogue:
    """Return the packaged rule pages."""
    return load_catalogue(cache=cache_folder)


@pytest.fixture(scope="session")
def matcher(catalogue: Catalogue) -> Matcher:
    """Return the matcher of the packaged rule pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(ENGINE_VARIABLE, raising=False)
        return Matcher(catalogue)


@pytest.fixture(scope="session", autouse=True)
def isolated_session(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Iterator[None]:
    """Isolate the state as `isolated_state` does, for shared fixtures, which are created first."""
    with pytest.MonkeyPatch.context() as patch:
        _isolate(patch, tmp_path_factory.mktemp("shared-state"), cache_folder)
        yield


@pytest.fixture(autouse=True)
def isolated_state(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Isolate each test from the user's runs, configuration and umask, and restore the main module."""
    _isolate(monkeypatch, tmp_path, cache_folder)
    # Streamlit's AppTest leaves its script as the main module, and a spawned process runs the main module.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    umask = os.umask(0o077)
    os.umask(umask)
    yield
    os.umask(umask)


def _isolate(patch: pytest.MonkeyPatch, folder: Path, cache: Path) -> None:
    for name in list(os.environ):
        if name.startswith("STALLWATCH_"):
            patch.delenv(name)
    patch.setenv("STALLWATCH_HOME", str(folder / "stallwatch-home"))
    patch.setenv("STALLWATCH_CACHE", str(cache))
    patch.setenv("XDG_CONFIG_HOME", str(folder / "config-home"))


@pytest.fixture
def switch() -> Iterator[Switch]:
    """Yield a dead man's switch."""
    from deadmanswitch import Switch  # in the folder `machine`

    made = Switch()
    yield made
    made.close()


def heed_signals() -> None:
    """Restore the signal handlers of a terminal: ``nohup`` and a script's ``&`` ignore some signals."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def allowed_skips(text: str) -> list[str]:
    """Return the test ids (or parts of ids) that may be skipped in CI."""
    lines = (line.strip() for line in text.splitlines())
    return [line.split("\t")[0].split("  ")[0] for line in lines if line and not line.startswith("#")]


class SkipGuard:
    """Fails the CI run if a test is skipped that is not on the list of allowed skips."""

    COLLECTED = "skips of whole files"

    def __init__(self, allowed: list[str]) -> None:
        self.allowed = allowed
        self.unexpected: list[str] = []
        self.collected: list[str] = []  #: unexpected skips of whole files

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> list[str]:
        expected = any(part in report.nodeid for part in self.allowed) or hasattr(report, "wasxfail")
        new = [f"{report.nodeid}: {report.longrepr}"] if report.skipped and not expected else []
        self.unexpected += new
        return new

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.collected += self.note(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect the skips of an xdist worker that ended; no other hook gets them.

        See ``dsession.py`` of pytest-xdist 3.8.
        """
        skips = getattr(node, "workeroutput", {}).get(self.COLLECTED, [])
        self.unexpected += [skip for skip in skips if skip not in self.unexpected]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unexpected:
            terminalreporter.section("skips that tests/allowed_skips.txt does not name", red=True)
            for line in self.unexpected:
                terminalreporter.line(line)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[self.COLLECTED] = self.collected
        elif self.unexpected and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


class SecondTry:
    """Runs failed tests that depend on clocks, processes or browsers again, and reports each rerun.

    A test that passes only at the second try has to be fixed: a busy machine found a race in it.
    """

    #: Tests of pure functions: they are not run again.
    PURE = frozenset(Path(__file__).with_name(name) for name in ("rules", "lint"))
    LINES = 12  #: number of lines of the first failure to print

    def __init__(self) -> None:
        self.first: dict[str, str] = {}  #: outcome of the first try by test
        self.failed: set[str] = set()
        self._timeouts: dict[str, Any] = {}  # pytest-timeout settings by test

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if self.PURE.isdisjoint(item.path.parents):
                item.add_marker(pytest.mark.flaky(reruns=1))

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        self._timeouts[item.nodeid] = settings

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Set a new time limit for each try.

        pytest-timeout (2.4, ``pytest_runtest_protocol``) has one limit for all tries.
        """
        if getattr(item, "execution_count", 1) > 1 and (settings := self._timeouts.get(item.nodeid)):
            item.ihook.pytest_timeout_cancel_timer(item=item)
            item.ihook.pytest_timeout_set_timer(item=item, settings=settings)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "rerun":  # type: ignore[comparison-overlap]
            self.first.setdefault(report.nodeid, report.longreprtext)
        elif report.failed:
            self.failed.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        passed = {test: said for test, said in self.first.items() if test not in self.failed}
        failed = {test: said for test, said in self.first.items() if test in self.failed}
        for title, tests in (
            ("passed only when tried again: mend them", passed),
            ("failed twice: how the first try ended", failed),
        ):
            if tests:
                terminalreporter.section(title, red=True, bold=True)
            for test, said in tests.items():
                terminalreporter.line(test, bold=True)
                for line in said.splitlines()[-self.LINES :]:
                    terminalreporter.line(f"    {line}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of parallel tests: `Lanes`, except for ``make test-quick``."""
    if config.getoption("dist") == "loadfile":
        return None  # xdist's own scheduler
    from lanes import Lanes  # in the folder `machine`

    return Lanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def pytest_long_lanes_first(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        from lanes import turn  # in the folder `machine`

        items.sort(key=lambda item: turn(item.nodeid))


def pytest_configure(config: pytest.Config) -> None:
    heed_signals()
    if os.environ.get("CI"):
        config.pluginmanager.register(SkipGuard(allowed_skips(ALLOWED_SKIPS.read_text())), "skip-guard")
        if config.pluginmanager.hasplugin("rerunfailures"):
            config.pluginmanager.register(SecondTry(), "second-try")
