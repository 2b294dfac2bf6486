"""Run every command that README, tutorial, limits, watching and durability show, in order, and
compare its output.

Times, sizes, pids, paths and users are not compared, because they differ between runs. Neither is
the order of lines, because stdout and stderr arrive by two pipes.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.docs.pages import DOCS, README, blocks
from tests.harness import PATIENCE, wait_until

_VARIES = [
    (r"that logs to .*|in its own systemd unit .*", "HOW"),
    (r"(?<![\w.])/[^\s,:]+", "PATH"),
    (r"pid \d+", "PID"),
    (r"\b\d+(\.\d)? [KM]iB", "SIZE"),
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b", "MOMENT"),
    (r"\b([A-Z][a-z]{2} \d\d )?\d\d:\d\d(:\d\d)?\b", "CLOCK"),
    (r"\b(\d+h)?(\d+m)?\d+(\.\d+)?s\b", "TIME"),
    (r"(ran|begins in) \d\.\d s", r"\1 TIME"),
    (r"(limit time: used [^,\n]*), \d+ %", r"\1, N %"),
    (r"used \d+ pids", "used N pids"),
    (r"MOMENT #\d+ ", "MOMENT #N "),
    (r"(used N pids.*)\(\d+ over", r"\1(N over"),
    (r"\b\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)", "MOMENT"),
    (r"\b\d{4}-\d\d-\d\d CLOCK", "MOMENT"),
    (r"SFA_DEADLINE=\d+", "SFA_DEADLINE"),
    (r" {2,}", "  "),
]

_ANOTHER_HOME = "<!-- the commands below are tried in another home -->"


class Reader:
    """Types the commands of a page, in a home of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._config = home / ".config/sfad/sfad.toml"
        self._config.parent.mkdir(parents=True)
        self._programs(home / "bin")
        kept = {name: os.environ[name] for name in ("LANG", "PYTHONPATH") if name in os.environ}
        self._env = kept | {
            "HOME": str(home),
            "PATH": f"{home}/bin:{os.environ['PATH']}",
            # not the one of a systemd that would start the daemon in another home
            "XDG_RUNTIME_DIR": str(home),
            "SFAD_STATE_DIR": str(home / "state"),
            "SFAD_SOCKET": str(home / "sock"),
        }

    def _programs(self, directory: Path) -> None:
        directory.mkdir()
        for name in ("sfad", "sfactl"):
            (directory / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {name} "$@"\n')
            (directory / name).chmod(0o755)

    def type(self, command: str) -> str:
        """Return what a command prints."""
        words = ["sh", "-c", command]
        done = subprocess.run(
            words, env=self._env, cwd=self._home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=2 * PATIENCE, check=False,
        )  # fmt: skip
        return done.stdout

    def configure(self, text: str) -> None:
        """Write the config file, and let a running daemon read it."""
        self._config.write_text(text)
        if (self._home / "sock").exists():
            os.kill(self.daemon().pid, signal.SIGHUP)

    def daemon(self) -> psutil.Process:
        """Return the daemon that the first command started."""
        return psutil.Process(json.loads(self.type("sfactl status --json"))["pid"])

    def leave(self) -> None:
        """Stop the daemon."""
        if (self._home / "sock").exists():
            # wait by pidfd: `psutil` would also wait until pid 1 has reaped the daemon, which takes
            # seconds in a container
            daemon = os.pidfd_open(self.daemon().pid)
            try:
                signal.pidfd_send_signal(daemon, signal.SIGTERM)
                assert select.select([daemon], [], [], PATIENCE)[0]
            finally:
                os.close(daemon)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    typing = Reader(tmp_path)
    yield typing
    typing.leave()


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Return each command with the output on the page."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def lines(text: str) -> list[str]:
    """Return the lines of a text that can be compared."""
    for pattern, instead in [
        *_VARIES,
        (rf"\buser ({re.escape(psutil.Process().username())}|ann)\b", "user USER"),
    ]:
        text = re.sub(pattern, instead, text)
    return sorted(
        line.rstrip()
        for line in text.splitlines()
        if not line.startswith("sfactl: no daemon was running")
    )


def follow(reader: Reader, command: str, shown: str) -> None:
    """Type a command and compare its output."""
    if command == "sfactl status":
        assert [line.split()[0] for line in reader.type(command).splitlines()] == [
            line.split()[0] for line in shown.splitlines()
        ]
    elif command == "sfactl config":
        wait_until(lambda: set(lines(shown)) <= set(lines(reader.type(command))), command)
    elif command.startswith(("sfactl tree", "sfactl why")):
        # background agents may not have come so far yet
        wait_until(lambda: lines(reader.type(command)) == lines(shown), f"{command}\n{shown}")
    else:
        assert lines(reader.type(command)) == lines(shown), command


def homes() -> dict[str, str]:
    """Return the parts of the pages whose commands follow each other in one home, each by page and
    number."""
    read = [
        README,
        *(DOCS / f"{name}.md" for name in ("tutorial", "limits", "watching", "durability")),
    ]
    return {
        f"{page.name}-{number}": text
        for page in read
        for number, text in enumerate(page.read_text().split(_ANOTHER_HOME))
    }


@pytest.mark.parametrize("text", homes().values(), ids=homes())
def test_commands_print_what_the_page_shows(reader: Reader, text: str) -> None:
    for block in blocks(text):
        if block.language == "sh":
            assert reader.type(block.text) == ""
        elif block.language == "toml":
            reader.configure(block.text)
        elif block.language == "console":
            for command, shown in steps(block.text):
                follow(reader, command, shown)
