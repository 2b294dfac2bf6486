"""Runs that try to keep more of the disk than `limits.max_output`, by other means than printing."""

from __future__ import annotations

import os
import platform
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import Isolation, RunInfo
from tests.conftest import Start
from tests.harness import Daemon, ended, spawn, started, stopped, wait_until
from tests.tiers import first
from tests.users import needs_root

from .agents import limit

KIB, MIB = 1 << 10, 1 << 20
LIMIT = 64 * KIB
KEPT = 2 * LIMIT + 8 * KIB
"""Bytes of a file that is bounded, with what its tree of extents may take."""

sandbox = pytest.mark.needs("bwrap")

ALLOCATE = """
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def allocate(descriptor, offset, length):
    if libc.fallocate(descriptor, 1, ctypes.c_int64(offset), ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), "fallocate")
def say(text):
    print(text, flush=True)
out = os.open("/proc/self/fd/1", os.O_WRONLY)
"""


@pytest.fixture(params=[None, pytest.param(Isolation(), marks=sandbox)], ids=["open", "isolated"])
def isolation(request: pytest.FixtureRequest) -> Isolation | None:
    found: Isolation | None = request.param
    return found


@pytest.fixture
def daemon(share: Start) -> Daemon:
    return share()


def attack(client: Client, work: Path, text: str, isolation: Isolation | None) -> RunInfo:
    (work / "attack.py").write_text(ALLOCATE + text)
    return started(
        client,
        [sys.executable, "attack.py"],
        cwd=os.fsencode(work),
        limits=[limit("output", LIMIT)],
        isolation=isolation,
    )


def taken(daemon: Daemon, run: RunInfo, suffix: str = ".out") -> int:
    return (daemon.state_dir / "output" / f"{run.id}{suffix}").stat().st_blocks * 512


def printed(daemon: Daemon, run: RunInfo, text: str) -> bool:
    with (daemon.state_dir / "output" / f"{run.id}.out").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 200))
        return text.encode() in file.read()


WHERE = {"behind its end": "", "before its end": "os.ftruncate(out, 1 << 32)"}


@first(1)
@pytest.mark.parametrize("where", WHERE)
def test_a_live_run_keeps_nothing_that_it_has_allocated(
    daemon: Daemon, tmp_path: Path, where: str, isolation: Isolation | None
) -> None:
    # it says so again and again: the daemon cuts off what is allocated behind the end, and with it
    # a line that is printed at that moment
    text = f"""{WHERE[where]}
allocate(out, {MIB}, {600 * MIB})
allocate(2, {MIB}, {600 * MIB})
while True:
    say("done")
    time.sleep(0.1)
"""
    with daemon.client() as client:
        run = attack(client, tmp_path, text, isolation)
        wait_until(lambda: printed(daemon, run, "done"), "it has allocated")
        wait_until(lambda: taken(daemon, run) <= KEPT, "its stdout is bounded")
        wait_until(lambda: taken(daemon, run, ".err") <= KEPT, "its stderr is bounded")
        stopped(client, run.id)


def test_a_run_keeps_nothing_that_it_has_allocated_just_before_its_end(
    daemon: Daemon, tmp_path: Path, isolation: Isolation | None
) -> None:
    with daemon.client() as client:
        run = ended(
            client, attack(client, tmp_path, f"allocate(out, {MIB}, {600 * MIB})", isolation).id
        )
        wait_until(lambda: taken(daemon, run) <= KEPT, "its stdout is bounded")


LEASE = """
import fcntl
signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel asks for the lease back
def lease():
    for kind in fcntl.F_WRLCK, fcntl.F_RDLCK:
        try:
            fcntl.fcntl(out, fcntl.F_SETLEASE, kind)
            return True
        except OSError:
            pass
    return False
"""


def test_a_run_gets_no_lease_on_its_output(
    daemon: Daemon, tmp_path: Path, isolation: Isolation | None
) -> None:
    # its own stdout and stderr are closed, because a lease is for a file's only opener
    text = f"""{LEASE}
os.close(1)
leased = any(lease() for _ in range(1000))
os.write(out, b"LEASED" if leased else b"x" * {MIB} + b"none")
time.sleep(300)
"""
    with daemon.client() as client:
        run = attack(client, tmp_path, text, isolation)
        wait_until(
            lambda: printed(daemon, run, "none") or printed(daemon, run, "LEASED"), "it has tried"
        )
        assert not printed(daemon, run, "LEASED")
        wait_until(lambda: taken(daemon, run) <= KEPT, "its stdout is bounded")
        stopped(client, run.id)


def test_a_lease_from_when_no_daemon_was_there_is_broken(start: Start, tmp_path: Path) -> None:
    """It is taken while the daemon is dead, and given back as soon as the kernel asks, only to be
    taken again."""
    daemon = start()
    text = f"""{LEASE}
os.close(1)
sys.stdout = os.fdopen(os.dup(2), "w")
asked = []
signal.signal(signal.SIGIO, lambda *_: asked.append(1))
open("ready", "w")
while not lease():
    time.sleep(0.001)
allocate(out, {MIB}, {600 * MIB})
open("leased", "w")
while True:
    if asked:
        fcntl.fcntl(out, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        lease()
        asked.clear()
    time.sleep(0.001)
"""
    with daemon.client() as client:
        run = attack(client, tmp_path, text, None)
        wait_until((tmp_path / "ready").exists, "it waits for the daemon's death")
    daemon.kill()
    wait_until((tmp_path / "leased").exists, "it has its lease")
    assert taken(daemon, run) >= 600 * MIB
    daemon.restart()
    wait_until(lambda: taken(daemon, run) <= KEPT, "its stdout is bounded")
    with daemon.client() as client:
        # another run is started as always, whatever the first one holds
        assert isinstance(spawn(client, ["true"]), m.RunReply)
        stopped(client, run.id)


TRUNCATES = """
echo "[agent:w] one" >&2; read -r _ <$0/gate
echo "[agent:w] two" >/dev/stderr; read -r _ <$0/gate
echo "[agent:w] three" | tee /dev/stderr >/dev/null; read -r _ <$0/gate
echo "four" >&2
"""


def seen(daemon: Daemon, run: str, word: str) -> bool:
    return word in daemon.sfactl("info", run).stdout


@first(1)
@pytest.mark.parametrize("killed", [False, True])
def test_what_a_run_wrote_before_it_truncated_its_stderr_is_kept(
    start: Start, tmp_path: Path, killed: bool
) -> None:
    daemon = start()
    os.mkfifo(tmp_path / "gate")
    # kept open: a read that begins before another writer has closed it would be told of its end
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    with daemon.client() as client:
        run = started(client, ["bash", "-c", TRUNCATES, tmp_path]).id
    saved = daemon.state_dir / "output" / f"{run}.err.kept"
    for word in ("one", "two", "three"):
        wait_until(partial(seen, daemon, run, word), "the daemon has looked")
        if killed and word == "two":
            wait_until(lambda: saved.exists() and saved.stat().st_size, "it is saved")
            daemon.kill()
            daemon.restart()
        os.write(gate, b"\n")
    with daemon.client() as client:
        ended(client, run)
    lines = ["[agent:w] one", "[agent:w] two", "[agent:w] three", "four"]
    wait_until(lambda: daemon.errors(run).splitlines() == lines, "all that it has written")
    assert daemon.sfactl("logs", run).stderr.splitlines() == lines
    assert "it truncated its stderr: 14 bytes that it had written before are kept" in (
        daemon.sfactl("events", "--run", run).stdout
    )
    assert [*(daemon.state_dir / "output").glob("*.kept")] == []
    os.close(gate)


FINE_TIMES = tuple(map(int, platform.release().split(".")[:2])) >= (6, 13)
"""Whether a file that was looked at has another time when it is written again."""


@needs_root
def test_roots_daemon_keeps_what_a_run_truncates_at_once(daemon: Daemon) -> None:
    """It has no time to look in between."""
    words = ["1", "2", "2" if FINE_TIMES else "4", "3"]
    loop = f"for i in {' '.join(words)}; do echo $i >/dev/stderr; done"
    script = f"echo one >&2; {loop}; echo x; echo y >$OUT"
    with daemon.client() as client:
        run = ended(
            client, started(client, ["bash", "-c", script.replace("$OUT", "/dev/stdout")]).id
        )
    wait_until(lambda: daemon.output(run.id) == "x\ny\n", "all of stdout")
    lines = ["one", *words]
    wait_until(lambda: daemon.errors(run.id).splitlines() == lines, "all of stderr")


@needs_root
def test_a_daemon_that_is_killed_lets_runs_open_their_output(
    daemon: Daemon, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with daemon.client() as client:
        run = started(client, ["bash", "-c", "read -r _ <$0; echo one >/dev/stderr", gate])
    daemon.process.send_signal(signal.SIGSTOP)
    gate.write_text("\n")
    opens = Path(f"/proc/{run.pid}/wchan")
    wait_until(lambda: "fanotify" in opens.read_text(), "it waits for the daemon")
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        ended(client, run.id)
    assert daemon.errors(run.id) == "one\n"
