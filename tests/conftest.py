"""Fixtures every test may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.harness import Daemon, running
from tests.leaks import cgroups, no_leaks

Start = Callable[..., Daemon]


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """No test leaves a child, a descriptor, a thread or a cgroup behind."""
    with no_leaks():
        yield


_before: set[str] = set()


def pytest_sessionstart() -> None:
    """Notes what was there before the first test."""
    _before.update(_remains())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what the whole suite has left on this machine."""
    left = sorted(_remains() - _before)
    terminalreporter.section("left behind")
    terminalreporter.write_line("\n".join(left) or "nothing: no process, no cgroup, no socket")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """And fails for it."""
    if _remains() - _before and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _remains() -> set[str]:
    """Daemons and runs that are alive, and their cgroups. Only what is in this session's own directories counts."""
    found = cgroups()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and "SFA_COOKIE" in process.environ():
                found.add(f"process {process.pid}: {' '.join(process.cmdline())}")
    return found


@pytest.fixture(params=["cgroup", "tags"])
def containment(request: pytest.FixtureRequest) -> str:
    """Both ways to hold a run's processes together."""
    return str(request.param)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts daemons that must end well: `start(config=..., mode=...)`."""
    with ExitStack() as stack:

        def start_one(**options: str) -> Daemon:
            directory = tmp_path / f"d{len(list(tmp_path.iterdir()))}"
            directory.mkdir()
            return stack.enter_context(running(directory, **options))

        yield start_one


@pytest.fixture
def daemon(start: Start) -> Daemon:
    """One daemon with the built-in configuration and generous rates."""
    return start(config="[quotas]\nspawns_per_hour = 100000")
