"""Fixtures for every test."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

from tests.harness import Daemon, argv, instance_of, running, stopped
from tests.leaks import cgroups, no_leaks, stays
from tests.reaper import reap_above
from tests.template import close_template

# Slow generation of examples says nothing about the product. The examples are the same each time, here and where CI is set, which
# Hypothesis looks at: a change is not held up by what it did not touch. `--hypothesis-profile=search` looks for others.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("search", deadline=None, derandomize=False, suppress_health_check=SLOW)
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None, suppress_health_check=SLOW)
# `make mutants` wants to know whether a test fails, not the smallest example
hypothesis.settings.register_profile("first", hypothesis.settings.get_profile("same"), phases=list(hypothesis.Phase)[:3])
hypothesis.settings.load_profile("same")

Start = Callable[..., Daemon]


COMPLETE = "SFAD_TEST_COMPLETE"
"""Set where everything that can be installed is installed: then a test is skipped only for what is listed here."""

MAY_SKIP = (
    "SFAD_TEST_AGENTS=1",  # the tests with real agents are opt-in, and `make agents` runs them
    "SFAD_TEST_VM=1",  # `make vm` runs the virtual machine
    "cgroup v1", "cgroup v2 controller", "for the sake of a controller", "the kernel throttles here",  # what the machine delegates
    "needs two CPUs", "FUSE", "file system", "pids cannot be chosen here", "takes the pid each time",  # other traits of a machine
    "it would take long",  # on a disk without holes
    "only with cgroups", "only with tags", "for a pretended controller",  # parameters that do not go together
)  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that may not be skipped."""
    report = yield
    if report.skipped and COMPLETE in os.environ and isinstance(report.longrepr, tuple) and call.excinfo is not None:
        reason = _why(call.excinfo.value)
        if not any(known in reason for known in MAY_SKIP):
            report.outcome, report.longrepr = "failed", f"{reason}; with {COMPLETE} set this test may not be skipped"
    return report


def _why(skipped: BaseException) -> str:
    """Return why a test is skipped. pytest-trio skips a test without a reason when the test has given one."""
    given = skipped if str(skipped) else skipped.__context__
    while isinstance(given, BaseExceptionGroup):
        given = given.exceptions[0]
    return str(given)


_LONGEST = (
    "fleet/test_faults", "fleet", "systemd", "web/test_live", "e2e/test_plans", "e2e/test_attacks", "crash", "e2e/test_gateway",
    "core/test_storm", "core/test_allowances", "e2e/test_quiet_runs", "e2e/test_users_gateways", "docs", "web", "top", "e2e", "cli",
    "processes", "usage", "gateway",
)  # fmt: skip
"""Files and packages that take longest, because their tests start programs and wait for them, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the longest files: a worker that gets one of them last keeps the others waiting."""
    items.sort(key=lambda item: _turn(item.path.relative_to(Path(__file__).parent)))


@cache
def _turn(file: Path) -> int:
    names = str(file.with_suffix("")), *map(str, file.parents)
    return min((_LONGEST.index(name) for name in names if name in _LONGEST), default=len(_LONGEST))


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """No test leaves a child, a descriptor, a thread or a cgroup behind."""
    with no_leaks():
        yield


_SESSION = "TESTS_OF_SFAD"
"""Variable in the environment of each process that this session starts, because another session may run on this machine."""


_WORKER = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this is one of several processes of a session. Only the process that started them looks for remains."""


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    """Mark the processes that this session starts."""
    # otherwise each of a thousand processes compiles the checkout again
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if not _WORKER:
        reap_above()
        os.environ[_SESSION] = f"{os.getpid()}-{time.time_ns()}"
    # under nohup, or in the background of a script, every client here would ignore these, as it should
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures", type=Path, help="write the ids of failed tests to this file, a line each")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if the suite as a whole has left processes or cgroups behind."""
    close_template()
    left = [] if _WORKER else _remains(session.config)
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report them, or that there are none."""
    terminalreporter.section("left behind")
    terminalreporter.write_line("\n".join(_remains(config)) or "nothing: no process, no cgroup")
    if failures := config.getoption("--failures"):
        reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        failures.write_text("".join(f"{name}\n" for name in dict.fromkeys(report.nodeid for report in reports)))


def _remains(config: pytest.Config) -> list[str]:
    """Return what is left a while after the last test: what ends by itself is not left behind."""
    until = time.monotonic() + 10
    while (found := _remaining(config)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _remaining(config: pytest.Config) -> list[str]:
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    found = []
    if left := cgroups():  # the suite has made ten thousand directories
        instances = {instance_of(Path(directory)) for directory, _, _ in os.walk(factory.getbasetemp())}
        found = [f"cgroup {path}" for path in left if path[-12:] in instances]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            ours = process.environ().get(_SESSION) == os.environ[_SESSION] and process.pid != os.getpid()
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"process {process.pid}: {' '.join(argv(process.pid))}")
    return sorted(found)


@pytest.fixture(params=["cgroup", "tags"])
def containment(request: pytest.FixtureRequest) -> str:
    """Each containment in turn."""
    return str(request.param)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start daemons that must end well: `start(config=..., mode=...)`."""
    with ExitStack() as stack:

        def start_one(**options: Any) -> Daemon:
            directory = tmp_path / f"d{len(list(tmp_path.iterdir()))}"
            directory.mkdir()
            return stack.enter_context(running(directory, **options))

        yield start_one


GENEROUS = "[quotas]\nspawns_per_hour = 100000"


@pytest.fixture
def daemon(start: Start) -> Daemon:
    """Start a daemon with the built-in configuration and generous rates."""
    return start(config=GENEROUS)


@pytest.fixture(scope="module")
def _daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """The daemons of a module, one for each set of options. They must end well after its last test."""
    made: dict[tuple[tuple[str, Any], ...], Daemon] = {}
    with ExitStack() as stack:

        def one(**options: Any) -> Daemon:
            key = tuple(sorted(options.items()))
            if key not in made:
                made[key] = stack.enter_context(running(tmp_path_factory.mktemp("daemon"), **options))
            elif made[key].process.poll() is not None:  # a test has failed between a kill and the restart
                made[key].restart()
            return made[key]

        yield one


@pytest.fixture
def share(_daemons: Start) -> Iterator[Start]:
    """Return a daemon that other tests of the module use too: `share(config=..., mode=...)`. It may be killed and restarted. Runs
    of other tests are in its list, but none of them is alive."""
    used: list[Daemon] = []

    def share_one(**options: Any) -> Daemon:
        used.append(_daemons(**({"config": GENEROUS} | options)))
        return used[-1]

    yield share_one
    for daemon in used:
        with daemon.client() as client:
            stopped(client, everything=True, grace=0)
        stays(daemon.pid)


@pytest.fixture
def common(share: Start) -> Daemon:
    """The daemon that the tests of a module share, with the built-in configuration and generous rates."""
    return share()
