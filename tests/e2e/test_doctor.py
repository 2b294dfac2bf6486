"""`sfactl doctor --report`: what a bug report says, and what it must not."""

from __future__ import annotations

import platform

from sfad import __version__
from tests.conftest import Start

HOOK = """
[limits]
max_time = "10m"

[[hooks]]
on = ["run_completed"]
command = ["/bin/true", "--token", "geheim-1234567890"]
"""


def test_a_report_has_what_a_maintainer_asks_for_and_no_secret(start: Start) -> None:
    daemon = start(config=HOOK)
    done = daemon.sfactl("doctor", "--report")
    assert done.returncode == 0
    for said in (
        f"- sfad {__version__}, Python {platform.python_version()}, glibc 2.",
        "## sfactl doctor",
        "answers at",
        f"limits.max_time = 600.0  # {daemon.config}",
    ):
        assert said in done.stdout
    assert "geheim" not in done.stdout
    assert "/bin/true" in done.stdout


def test_a_report_needs_no_daemon(start: Start) -> None:
    daemon = start()
    daemon.stop()
    done = daemon.sfactl("doctor", "--report", "--json")
    assert done.returncode == 0
    assert "cannot be reached" in done.stdout
