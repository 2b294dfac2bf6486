"""Programs whose main process is interrupted alone before their run is stopped: who gets which
signal."""

from __future__ import annotations

import sys
from pathlib import Path

from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, agent, alive, ended, started, stopped, strays, wait_until
from tests.tiers import variant

CLAUDE = """\
#!{python}
# {claude} LOG HOW: notes the signals that it and its tool get
import os, signal, sys, time

log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
how = sys.argv[2]

def note(who, number, then):
    def handler(*_):
        os.write(log, f"{{who}} {{signal.Signals(number).name}}\\n".encode())
        then()
    signal.signal(number, handler)

def obey():
    while how.startswith("/") and not os.path.exists(how):
        time.sleep(0.01)
    os._exit(0)

who = "main" if os.fork() else "tool"
note(who, signal.SIGINT, (lambda: None) if who == "tool" or how == "deaf" else obey)
note(who, signal.SIGTERM, lambda: os._exit(0))
os.write(log, f"{{who}} ready\\n".encode())
while True:
    time.sleep(60)
"""


def claude(directory: Path) -> str:
    """A program of that name."""
    path = directory / "claude"
    path.write_text(CLAUDE.format(python=sys.executable, claude=path))
    path.chmod(0o755)
    return str(path)


def signals(log: Path) -> list[str]:
    """What was noted since main process and tool were ready."""
    return [line for line in log.read_text().splitlines() if not line.endswith("ready")]


def ready(log: Path) -> bool:
    """Whether both are."""
    return log.exists() and log.read_text().count("ready") == 2


def test_the_main_process_is_interrupted_before_the_rest(
    tmp_path: Path, start: Start, containment: str
) -> None:
    daemon = start(mode=containment, config="[stop]\ngrace = 60\npolite = 0.5")
    logs = [tmp_path / name for name in ("single", "child", "deaf")]
    words = [sys.executable, claude(tmp_path)]
    lead = agent(
        tmp_path,
        "lead",
        "".join(
            f"sfactl('spawn', '--name', {log.name!r}, '--', *{words!r}, {str(log)!r}, {how!r})\n"
            for log, how in zip(logs[1:], ("obeys", "deaf"), strict=True)
        )
        + "time.sleep(100)\n",
    )
    with daemon.client() as client:
        single, tree = started(client, [*words, logs[0], "obeys"]), started(client, lead)
        wait_until(lambda: all(map(ready, logs)), "everybody is ready")
        reply = stopped(client, single.id, tree.id)
        assert strays(daemon.instance) == []
        assert reply.survivors == []
        assert reply.elapsed_s < 50  # not the grace
        assert signals(logs[0]) == ["main SIGINT", "tool SIGTERM"]
        assert signals(logs[1]) == ["main SIGINT", "tool SIGTERM"]
        assert signals(logs[2])[0] == "main SIGINT"
        assert sorted(signals(logs[2])[1:]) == ["main SIGTERM", "tool SIGTERM"]
        run = ended(client, single.id)
        assert (run.status, run.exit_code) == (Status.CANCELLED, 0)


def test_a_timeout_a_pause_and_a_daemon_that_ends(tmp_path: Path, start: Start) -> None:
    daemon = start()
    command = claude(tmp_path)
    logs = [tmp_path / name for name in ("timeout", "paused", "drained")]
    done = daemon.sfactl("run", "--timeout", "1", "--", command, str(logs[0]), "obeys")
    assert (done.returncode, signals(logs[0])) == (3, ["main SIGINT", "tool SIGTERM"])
    with daemon.client() as client:
        paused, _ = (started(client, [command, str(log), "obeys"]) for log in logs[1:])
        wait_until(lambda: all(map(ready, logs)), "both are ready")
        client.call(m.Pause(id=client.next_id(), run=paused.id), m.RunReply)
        stopped(client, paused.id)
        assert signals(logs[1]) == ["main SIGINT", "tool SIGTERM"]
    assert daemon.stop() == 0
    assert signals(logs[2]) == ["main SIGINT", "tool SIGTERM"]


@variant
def test_a_crash_of_the_daemon_after_the_first_step(tmp_path: Path, start: Start) -> None:
    daemon = start(config="[stop]\ngrace = 60\npolite = 60")
    log, gate = tmp_path / "log", tmp_path / "gate"
    with daemon.client() as client:
        run = started(client, [claude(tmp_path), log, gate])
        wait_until(lambda: ready(log), "it is ready")
        client.send(m.Stop(id=client.next_id(), runs=[run.id]))
        wait_until(lambda: signals(log), "the first step")
    daemon.kill()
    gate.touch()
    wait_until(lambda: not alive(main_of(run)), "the main process has ended")
    daemon.restart()
    with daemon.client() as client:
        assert ended(client, run.id).status is Status.CANCELLED
    assert signals(log) == ["main SIGINT", "tool SIGTERM"]
    assert_nothing_left(daemon)


def main_of(run: RunInfo) -> int:
    """Its main process."""
    assert run.pid is not None
    return run.pid


def assert_nothing_left(daemon: Daemon) -> None:
    """No process of its runs."""
    assert strays(daemon.instance) == []
