"""Fixtures for every test."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

from tests import needs, outside, surroundings
from tests.harness import Daemon, argv, instance_of, running, stopped
from tests.leaks import cgroups, no_leaks, stays
from tests.outside import Outside
from tests.reaper import reap_above
from tests.surroundings import SESSION
from tests.template import close_templates
from tests.tiers import is_loaded_always

# Slow generation of examples says nothing about the product. The examples are the same each time,
# here and where CI is set, which Hypothesis looks at: a change is not held up by what it did not
# touch. `--hypothesis-profile=search` looks for others.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "search", deadline=None, derandomize=False, suppress_health_check=SLOW
)
hypothesis.settings.register_profile(
    "same", deadline=None, derandomize=True, database=None, suppress_health_check=SLOW
)
# `make mutants` wants to know whether a test fails, not the smallest example
hypothesis.settings.register_profile(
    "first", hypothesis.settings.get_profile("same"), phases=list(hypothesis.Phase)[:3]
)
hypothesis.settings.load_profile("same")

Start = Callable[..., Daemon]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep eight thousand tests and their modules out of each later collection of garbage."""
    gc.disable()
    try:
        _import_in_turn(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _import_in_turn(config: pytest.Config) -> None:
    """Import the tests, in each of several processes from another file on. In a fresh clone, pytest
    compiles all of them, which takes one process 12 s. So each compiles a part for the others."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None:
        return
    places = [config.rootpath / name.partition("::")[0] for name in config.args]
    files = sorted(
        file for place in places for file in place.rglob("test_*.py") if is_loaded_always(file)
    )
    begin = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[begin:] + files[:begin]:
        with suppress(Exception, pytest.skip.Exception):  # that is told when pytest imports it
            import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


_LONGEST = (
    "frameworks", "fleet/test_faults", "fleet", "systemd", "e2e/test_plans", "e2e/test_attacks",
    "crash", "e2e/test_gateway", "features/test_seam", "features/budgets/test_allowances",
    "e2e/test_quiet_runs", "e2e/test_users_gateways", "docs", "web", "top", "e2e", "cli",
    "processes", "usage", "gateway",
)  # fmt: skip
"""Files and packages that take longest, because their tests start programs and wait for them, the
longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the longest files: a worker that gets one of them last keeps the others
    waiting."""
    items.sort(key=lambda item: _turn(item.path))
    # a name is kept, sent and put into the environment many times, and a parameter may be an image
    if long := [item.nodeid[:100] for item in items if len(item.nodeid) > _LONGEST_NAME]:
        raise pytest.UsageError(f"these parameters need `ids` that are shorter: {long}")


_LONGEST_NAME = 1000


@cache
def _turn(path: Path) -> int:
    file = path.relative_to(Path(__file__).parent)
    names = str(file.with_suffix("")), *map(str, file.parents)
    return min((_LONGEST.index(name) for name in names if name in _LONGEST), default=len(_LONGEST))


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """No test leaves a child, a descriptor, a thread or a cgroup behind."""
    with no_leaks():
        yield


_WORKER = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this is one of several processes of a session. Only the process that started them looks
for remains."""


_OUTSIDE = pytest.StashKey[Outside]()
_LEFT = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Leave the person's environment and home, and mark the processes that this session starts."""
    config = session.config
    if sys.flags.optimize and not config.getoption("numprocesses", None):
        pytest.exit(
            "PYTHONOPTIMIZE removes what the tests assert; unset it", pytest.ExitCode.USAGE_ERROR
        )
    # otherwise each of a thousand processes compiles the checkout again
    sys.dont_write_bytecode = False
    # the kernel keeps no exit codes for who ignores this; tests/e2e/test_inherited.py starts both
    # programs so, and with more
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # a shell may allow fewer descriptors than some tests have open
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    if not _WORKER:
        reap_above()
        os.environ[SESSION] = f"{os.getpid()}-{time.time_ns()}"
    # paths of sockets have to be short, and agents look for settings in all directories above
    # theirs
    tempfile.tempdir = "/tmp" if os.access("/tmp", os.W_OK) else None
    base = _base(config)
    surroundings.enter(base / "surroundings", getattr(config, "workerinput", {}).get("person"))
    if not _WORKER:
        config.stash[_OUTSIDE] = Outside(base)
    outside.watch(f"{base}/surroundings/strays")
    # under nohup, or in the background of a script, every client here would ignore these, as it
    # should
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Leave the checkout, which may be in a home: programs look for settings in all directories
    above the working one. A process that starts others of the session stays, because they read the
    options there."""
    if _WORKER or not session.config.getoption("numprocesses", None):
        os.chdir(_base(session.config) / "surroundings")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of the session of the person's environment. Its own is the built one."""
    node.workerinput["person"] = dict(surroundings.person)


def _base(config: pytest.Config) -> Path:
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return factory.getbasetemp()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--failures", type=Path, help="write the ids of failed tests to this file, a line each"
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if the suite as a whole has left processes, cgroups or files behind, or has touched
    files of the person."""
    close_templates(all_=True)
    left = session.config.stash[_LEFT] = [] if _WORKER else _remains(session.config)
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Report them, or that there are none."""
    left: list[str] = config.stash.get(_LEFT, [])
    terminalreporter.section("left behind")
    terminalreporter.write_line("\n".join(left) or "nothing: no process, no cgroup, no file")
    config.stash[_OUTSIDE].close()
    if failures := config.getoption("--failures"):
        reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        failures.write_text(
            "".join(f"{name}\n" for name in dict.fromkeys(report.nodeid for report in reports))
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say last that something was left behind: the line before it may tell of passed tests only."""
    if left := config.stash.get(_LEFT, []):
        print("LEFT BEHIND, so the session has failed:", *left, sep="\n  ", flush=True)


def _remains(config: pytest.Config) -> list[str]:
    """Return what is left a while after the last test: what ends by itself is not left behind."""
    until = time.monotonic() + 10
    while (found := _remaining(config)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _remaining(config: pytest.Config) -> list[str]:
    found = config.stash[_OUTSIDE].left()
    if left := cgroups():  # the suite has made ten thousand directories
        instances = {instance_of(Path(directory)) for directory, _, _ in os.walk(_base(config))}
        found += [f"cgroup {path}" for path in left if path[-12:] in instances]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            ours = (
                process.environ().get(SESSION) == os.environ[SESSION] and process.pid != os.getpid()
            )
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"process {process.pid}: {' '.join(argv(process.pid))}")
    return sorted(found)


@pytest.fixture(params=["cgroup", "tags"])
def containment(request: pytest.FixtureRequest) -> str:
    """Each containment in turn."""
    needs.containment(request.param)
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
    """The daemons of a module, one for each set of options. They must end well after its last
    test."""
    made: dict[tuple[tuple[str, Any], ...], Daemon] = {}
    with ExitStack() as stack:

        def one(**options: Any) -> Daemon:
            key = tuple(sorted(options.items()))
            if key not in made:
                made[key] = stack.enter_context(
                    running(tmp_path_factory.mktemp("daemon"), **options)
                )
            elif made[key].process.poll() is not None:
                # a test has failed between a kill and the restart
                made[key].restart()
            return made[key]

        yield one


@pytest.fixture
def share(_daemons: Start) -> Iterator[Start]:
    """Return a daemon that other tests of the module use too: `share(config=..., mode=...)`. It may
    be killed and restarted. Runs of other tests are in its list, but none of them is alive."""
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
    """The daemon that the tests of a module share, with the built-in configuration and generous
    rates."""
    return share()
