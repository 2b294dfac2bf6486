"""`--stdio inherit` on a terminal: an interactive program, with job control and Ctrl-C of its
own."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import wait_until

from .conftest import PATIENCE, SFACTL, World


class Screen:
    """A user at a terminal in which `sfactl` runs, or another program, as the leader of its
    session."""

    def __init__(self, world: World, *words: str, program: tuple[str, ...] = SFACTL) -> None:
        self.world = world
        self.pid, self._master = os.forkpty()
        if self.pid == 0:
            os.execve(
                program[0], [*program, *words], world.env | {"TERM": "dumb", "PS1": "> ", "ENV": ""}
            )
        self.text = ""
        self._at = 0

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def expect(self, pattern: str) -> str:
        """Read until the text after the last match matches."""
        give_up = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.text[self._at :])):
            assert self._read(give_up - time.monotonic()), (
                f"{pattern!r} not in {self.text[self._at :]!r}"
            )
        self._at += found.end()
        return found[0]

    def _read(self, timeout: float) -> bool:
        if not select.select([self._master], [], [], max(timeout, 0))[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.text += data.decode(errors="replace")
        return bool(data)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def attributes(self) -> list[Any]:
        return list(termios.tcgetattr(self._master))

    def exit_code(self) -> int:
        while self._read(PATIENCE):
            """Until the terminal is closed."""
        pidfd = os.pidfd_open(self.pid)
        assert select.select([pidfd], [], [], PATIENCE)[0]
        os.close(pidfd)
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED)
        assert ended is not None
        return ended.si_status

    def close(self) -> None:
        os.close(self._master)


@pytest.fixture
def bash(daemon: World) -> Iterator[Screen]:
    screen = Screen(
        daemon, "run", "-q", "--stdio", "inherit", "--", "bash", "--norc", "--noprofile", "-i"
    )
    screen.expect("> $")
    yield screen
    screen.close()


def leave(screen: Screen) -> None:
    screen.type("exit 6\r")
    assert screen.exit_code() == 6


def test_the_program_has_a_terminal_and_job_control(bash: Screen) -> None:
    assert "no job control" not in bash.text
    bash.type("tty; test -t 0 -a -t 1 -a -t 2 && echo all-$((1+1))\r")
    bash.expect("/dev/pts/[0-9]+")
    bash.expect("all-2")
    bash.type("sleep 50\r")
    bash.expect("sleep 50")
    wait_for_foreground(bash)
    bash.type("\x1a")
    bash.expect("Stopped")
    bash.type("kill %1; fg; echo cleaned-$((1+2))\r")
    bash.expect("cleaned-3")
    leave(bash)


def test_ctrl_c_reaches_the_program_and_not_the_client(bash: Screen) -> None:
    bash.type("sleep 50\r")
    bash.expect("sleep 50")
    wait_for_foreground(bash)
    bash.type("\x03")
    bash.expect("> $")
    bash.type("echo status-$?\r")
    bash.expect("status-130")
    leave(bash)


def wait_for_foreground(screen: Screen) -> None:
    """Wait until the shell has given its terminal to its `sleep`."""
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    name, rest = file.read().split("(", 1)[1].rsplit(") ", 1)
            except OSError:
                continue
            _, _, group, _, terminal, holder = rest.split()[:6]
            if name == "sleep" and terminal != "0" and group == holder and screen.world.owns(pid):
                return
    pytest.fail(f"no job in the foreground: {screen.text!r}")


def test_the_size_follows_the_users_terminal(bash: Screen) -> None:
    bash.resize(33, 77)
    bash.type("stty size\r")
    while bash.expect(r"\d+ \d+\r") != "33 77\r":
        bash.type("stty size\r")
    leave(bash)


def test_the_users_terminal_is_as_before(daemon: World) -> None:
    screen = Screen(
        daemon, "run", "-q", "--stdio", "inherit", "--", "sh", "-c", "echo here; read word"
    )
    screen.expect("here")
    during = screen.attributes()
    screen.type("x\r")
    assert screen.exit_code() == 0
    after = screen.attributes()
    screen.close()
    local_modes = 3
    assert not int(str(during[local_modes])) & termios.ICANON
    assert int(str(after[local_modes])) & termios.ICANON


def test_a_python_prompt(daemon: World) -> None:
    screen = Screen(daemon, "run", "-q", "--stdio", "inherit", "--", sys.executable, "-q")
    screen.expect(">>> ")
    screen.type("6 * 7\r")
    screen.expect("42")
    screen.expect(">>> ")
    # Python that is interrupted between its prompt and its select(2) looks for signals only after
    # the next key
    screen.type("\x03")
    screen.type("\r")
    screen.expect("KeyboardInterrupt")
    screen.type("raise SystemExit(9)\r")
    assert screen.exit_code() == 9
    screen.close()


def test_a_signal_to_the_client_stops_the_program_and_restores_the_terminal(daemon: World) -> None:
    screen = Screen(
        daemon, "run", "-q", "--stdio", "inherit", "--", "sh", "-c", "echo here; sleep 60"
    )
    screen.expect("here")
    os.kill(screen.pid, signal.SIGTERM)
    assert screen.exit_code() == 143
    assert int(str(screen.attributes()[3])) & termios.ICANON
    screen.close()


READS_KEYS = (
    "import os, signal, sys, time, tty; before = tty.setraw(0); print('raw', flush=True); "
    "os.read(0, 1); time.sleep(60)"
)
"""Like `gemini -p`, whose output is text: it reads single keys from its stdin, among them
Ctrl-C."""


def test_ctrl_c_stops_a_run_whose_output_is_text_although_its_program_reads_keys(
    daemon: World,
) -> None:
    screen = Screen(daemon, "run", "-q", "--", sys.executable, "-c", READS_KEYS)
    before = screen.attributes()
    screen.expect("raw")
    wait_until(lambda: int(str(screen.attributes()[3])) & termios.ISIG, "keys are signals again")
    screen.type("\x03")
    assert screen.exit_code() == 130
    assert screen.attributes() == before
    screen.close()
    assert daemon.json("list")["runs"][-1]["status"] == "cancelled"


def test_a_program_that_is_killed_leaves_the_terminal_as_it_was(daemon: World) -> None:
    screen = Screen(
        daemon,
        "run",
        "-q",
        "--",
        sys.executable,
        "-c",
        f"{READS_KEYS[: -len('time.sleep(60)')]}os.kill(os.getpid(), 9)",
    )
    before = screen.attributes()
    screen.expect("raw")
    screen.type("x")
    assert screen.exit_code() == 137
    assert screen.attributes() == before
    screen.close()


def test_a_program_that_ctrl_c_ends_at_its_terminal_is_cancelled(daemon: World) -> None:
    # no shell: dash forks what it starts with interrupts held back, and one that comes just then
    # waits for the end of that
    screen = Screen(
        daemon,
        "run",
        "-q",
        "--stdio",
        "inherit",
        "--",
        sys.executable,
        "-c",
        "print('here'); import time; time.sleep(60)",
    )
    screen.expect("here")
    screen.type("\x03")
    assert screen.exit_code() == 130
    screen.close()
    run = daemon.json("list")["runs"][-1]
    assert (run["status"], run["reason"]["kind"]) == ("cancelled", "interrupt")


IN_A_SESSION = """
import os, signal, sys
if os.fork():
    signal.pause()  # as a shell at the terminal
if os.fork() == 0:
    os.setsid()
    os.execv(sys.argv[2], sys.argv[2:])
if sys.argv[1] == "su":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    os.wait()
"""
"""Executes the words in a session of their own, as `su -c` does, which then waits also when the
terminal is gone, or as `setsid` does, which leaves them alone."""


@pytest.mark.parametrize(("how", "code"), [("su", 143), ("setsid", 0)])
def test_the_end_of_a_terminal_reaches_a_run_for_which_a_process_waits_there(
    daemon: World, tmp_path: Path, how: str, code: int
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = ("run", "--name", "left", "--", "sh", "-c", 'echo ready; read x < "$0"', str(pipe))
    screen = Screen(daemon, how, *SFACTL, *words, program=(sys.executable, "-c", IN_A_SESSION))
    screen.expect("ready")
    screen.close()
    os.waitid(os.P_PID, screen.pid, os.WEXITED)
    if how == "setsid":
        pipe.write_text("go on\n")
    told = daemon.sfactl("wait", "left", code=code).stdout
    assert ("(SIGHUP)" in told) == (how == "su")
