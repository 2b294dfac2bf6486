"""The daemon dies at each stage of what a client does, and comes back: the client continues, and
does not repeat a request that would count twice. Real processes and sockets; the daemon is
scripted."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from sfactl.connecting import connection
from sfactl.connecting.connection import Client, ConnectionLost
from sfactl.sessions import asking as sessions
from sfad.features.advice.messages import Recommend, Recommended
from sfad.protocol import messages as m
from sfad.protocol.paths import connect_path
from sfad.protocol.types import Event, Refusal, Rule, RunInfo, Status
from tests.harness import wait_until
from tests.tiers import first

from .conftest import PATIENCE, World
from .samples import NOON, daemon, reason, run
from .scripted import Scripted
from .test_terminal import Screen

IMPATIENT = (
    "import sfactl.connecting.connection as c; c.RECONNECT = 0.6; "
    "from sfactl.__main__ import main; main()"
)
"""`sfactl` that waits less long for a daemon."""

LOST = run(
    Status.LOST,
    reason=reason("daemon", "it ended while no daemon was there to see it"),
    ended_at=NOON,
)
DONE = run(Status.COMPLETED, exit_code=0, ended_at=NOON)
FAILED = run(Status.FAILED, exit_code=3, reason=reason("exit", "it exited with 3"), ended_at=NOON)


class Life:
    """One run, as a daemon reports it: live until it is `final`. For each kind in `drops`, the next
    request of that kind gets no reply, and its connection is closed."""

    def __init__(self) -> None:
        self.now = run()
        self.final: RunInfo | None = None
        self.drops: list[type[m.Request]] = []
        self.keeps: list[type[m.Request]] = []
        """Kinds that get no reply, while the connection stays."""
        self._waiting = 0

    def __call__(self, request: m.Request) -> m.Reply | tuple[m.Reply, ...] | None:
        if type(request) in self.drops:
            self.drops.remove(type(request))
            return None
        if type(request) in self.keeps:
            return ()
        return self._answer(request)

    def _answer(self, request: m.Request) -> m.Reply | tuple[m.Reply, ...]:
        number = request.id
        match request:
            case m.Wait():
                self._waiting = number
                return () if self.final is None else m.RunReply(id=number, run=self.final)
            case m.Logs():
                return m.LogFiles(id=number, run="a1", ended=self.final is not None)
            case m.Watch() | m.Signal() | m.Send():
                return m.Done(id=number)
            case m.Stop():
                self.final = self.final or run(
                    Status.CANCELLED, signal=request.signal, ended_at=NOON
                )
                stopped = m.Stopped(id=number, stopped=["a1"], survivors=[], elapsed_s=0.1)
                return (stopped, m.RunReply(id=self._waiting, run=self.final))
            case m.List():
                return m.RunList(id=number, runs=[self.now])
            case m.DaemonInfo():
                return daemon(id=number)
            case m.Config():
                return m.ConfigReply(id=number, settings=[])
            case Recommend():
                return Recommended(id=number, runs=0, advice=[], in_force=[])
            case m.Result():
                return m.ResultText(id=number, run="a1", text="text\n", truncated=False)
            case m.Reserve():
                return m.Reserved(id=number, run="a1", reservation="a1-1")
        return m.RunReply(id=number, run=self.now)


@pytest.fixture
def life() -> Life:
    return Life()


@pytest.fixture
def server(world: World, life: Life, tmp_path: Path) -> Iterator[Scripted]:
    scripted = Scripted(world.socket, life)
    for name in ("out", "err"):
        (tmp_path / name).touch()
        scripted.files.append(os.open(tmp_path / name, os.O_RDONLY))
    yield scripted
    if world.socket.exists():
        scripted.stop()
    for descriptor in scripted.files:
        os.close(descriptor)


class Starter(Protocol):
    """Start a client, which is killed after the test."""

    def __call__(
        self, *words: str, impatient: bool = False, **env: str
    ) -> subprocess.Popen[bytes]: ...


@pytest.fixture
def client(world: World) -> Iterator[Starter]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, impatient: bool = False, **env: str) -> subprocess.Popen[bytes]:
        program = (
            [sys.executable, "-c", IMPATIENT] if impatient else [sys.executable, "-m", "sfactl"]
        )
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        started.append(
            subprocess.Popen([*program, *words], env=world.env | env, bufsize=0, **pipes)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out.decode(), err.decode()


def said(process: subprocess.Popen[bytes], what: bytes) -> None:
    """Read stderr up to a line with `what` in it."""
    assert process.stderr is not None
    while what not in (line := process.stderr.readline()):
        assert line, f"{what!r} was never said"


def noticed(process: subprocess.Popen[bytes]) -> None:
    """Wait until a client has closed the connection that it has lost."""
    fds = Path("/proc", str(process.pid), "fd")

    def closed() -> bool:
        with suppress(FileNotFoundError):  # one was closed just now: look again
            return not any(os.readlink(fd).startswith("socket:") for fd in fds.iterdir())
        return False

    wait_until(closed, "the client has closed its connection")


def received(process: subprocess.Popen[bytes], number: int) -> None:
    """Wait until a signal is not pending any more."""
    status = Path("/proc", str(process.pid), "status")
    pending = re.compile(r"^ShdPnd:\t(\w+)", re.MULTILINE)

    def mask() -> int:
        found = pending.search(status.read_text())
        assert found
        return int(found[1], 16)

    wait_until(lambda: not mask() >> (number - 1) & 1, f"signal {number} is received")


def write(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


# ---- spawn


def without_ids(requests: list[m.Spawn]) -> list[m.Spawn]:
    return [msgspec.structs.replace(request, id=0) for request in requests]


def test_a_spawn_without_an_answer_is_sent_again_with_its_key(
    server: Scripted, life: Life, client: Starter
) -> None:
    life.drops = [m.Spawn]
    assert ended(client("spawn", "--name", "w", "--", "true")) == (0, "a1\n", "")
    first, second = without_ids(server.all(m.Spawn))
    assert first == second
    assert first.key is not None
    assert len(bytes.fromhex(first.key)) == 16


def test_every_spawn_has_a_key_of_its_own(server: Scripted, client: Starter) -> None:
    for _ in range(2):
        ended(client("spawn", "--", "true"))
    first, second = server.all(m.Spawn)
    assert first.key != second.key


def test_a_spawn_waits_for_a_daemon_that_is_away(
    server: Scripted, life: Life, client: Starter
) -> None:
    life.keeps = [m.Spawn]
    process = client("spawn", "--json", "--", "true")
    server.until(m.Spawn)
    server.stop()
    noticed(process)
    life.keeps = []
    server.start()
    code, out, _ = ended(process)
    assert (code, msgspec.json.decode(out)["id"], len(server.all(m.Spawn))) == (0, "a1", 2)


def test_a_spawn_that_is_refused_the_second_time_is_refused(
    server: Scripted, client: Starter
) -> None:
    refusal = Refusal(kind=Rule.DEPTH, detail="5 of 5", message="too deep")
    server.answer = lambda request: (
        m.Refused(id=request.id, refused=refusal) if len(server.asked) > 1 else None
    )
    code, out, err = ended(client("spawn", "--", "true"))
    assert (code, out) == (1, "")
    assert "too deep" in err


@first(1)
@pytest.mark.parametrize("verb", ["spawn", "run"])
def test_a_spawn_that_takes_the_daemon_down_is_not_sent_for_ever(
    server: Scripted, client: Starter, verb: str
) -> None:
    server.answer = lambda _request: None
    code, out, err = ended(client(verb, "--", "true"))
    assert (code, out) == (69, "")
    assert "The spawn may have been carried out" in err
    assert "sfactl list" in err
    assert len(server.asked) == 1 + m.Spawn.repeats


@first(1)
@pytest.mark.parametrize("verb", ["spawn", "run"])
def test_a_daemon_that_does_not_come_back_is_told_after_a_while(
    server: Scripted, life: Life, client: Starter, verb: str
) -> None:
    life.keeps = [m.Spawn]
    process = client(verb, "--", "true", impatient=True)
    server.until(m.Spawn)
    server.stop()
    code, _, err = ended(process)
    assert code == 69
    assert "did not come back within 0.6 s" in err
    assert "may have been" in err


def test_a_first_connection_is_not_waited_for(world: World) -> None:
    began = time.monotonic()
    for words in (
        ["spawn", "--", "true"],
        ["run", "--", "true"],
        ["list"],
        ["wait", "a1"],
        ["stop", "a1"],
    ):
        assert "does not exist" in world.sfactl(*words, code=69).stderr
    assert time.monotonic() - began < 5 * connection.RECONNECT / 2


@first(1)
@pytest.mark.parametrize("verb", ["spawn", "run"])
def test_inside_a_run_none_is_started_in_its_place(
    world: World, server: Scripted, life: Life, client: Starter, verb: str
) -> None:
    life.keeps = [m.Spawn]
    process = client(verb, "--", "true", impatient=True, SFAD_AUTOSTART="1", SFA_RUN_ID="a1")
    server.until(m.Spawn)
    server.stop()
    assert ended(process)[0] == 69
    assert not world.state.exists()


# ---- foreground


def test_a_foreground_spawn_passes_the_same_descriptors_again(
    server: Scripted, life: Life, client: Starter
) -> None:
    life.drops, life.final = [m.Spawn], FAILED
    process = client("run", "-q", "--", "true")
    assert process.stdin is not None
    stdin = os.fstat(process.stdin.fileno()).st_ino
    assert ended(process)[0] == 3
    first, second = without_ids(server.all(m.Spawn))
    assert first == second
    assert (first.tied, first.watch, first.stdin, first.descriptors) == (
        True,
        True,
        "descriptor",
        1,
    )
    assert server.came == [[stdin], [stdin]]


def test_a_terminal_is_passed_again(world: World, server: Scripted, life: Life) -> None:
    life.drops = [m.Spawn]
    screen = Screen(world, "run", "--stdio", "inherit", "--", "sh")
    server.until(m.Wait)
    life.final = FAILED
    server.restart()
    assert screen.exit_code() == 3
    assert len(server.came) == 2
    assert server.came[0] == server.came[1]
    assert len(set(server.came[0])) == 1
    screen.close()


@pytest.mark.parametrize("keep", [True, False])
def test_a_run_is_watched_and_tied_again(
    server: Scripted, life: Life, client: Starter, keep: bool
) -> None:
    process = client("run", *["--keep"] * keep, "--", "true")
    server.until(m.Wait)
    for count in (2, 3):
        server.restart()
        server.until(m.Wait, count)
    event = Event(type="run_progress", run_id="a1", agent_name="worker", message="half of it")
    server.say(m.EventPush(id=server.all(m.Watch)[-1].id, event=event))
    said(process, b"[agent:worker] half of it\n")
    life.final = FAILED
    server.restart()
    code, out, err = ended(process)
    assert (code, out) == (3, "")
    assert err.endswith("[agent:worker] failed: it exited with 3\n")
    assert [wait.tie for wait in server.all(m.Wait)] == [False, *[not keep] * 3]
    assert [type(request) for request in server.asked[:5]] == [
        m.Spawn,
        m.Logs,
        m.Wait,
        m.Watch,
        m.Wait,
    ]
    assert len({request.id for request in server.asked}) == len(server.asked)


def test_output_is_copied_meanwhile_without_gap_or_repetition(
    server: Scripted, life: Life, client: Starter, tmp_path: Path
) -> None:
    write(tmp_path / "out", "before\n")
    process = client("run", "-q", "--", "true")
    assert process.stdout is not None
    assert process.stdout.readline() == b"before\n"
    server.until(m.Wait)
    server.stop()
    said(process, b"went away")
    write(tmp_path / "out", "meanwhile\n")
    assert process.stdout.readline() == b"meanwhile\n", "while nobody serves"
    life.final = DONE
    write(tmp_path / "out", "x" * 300_000)
    write(tmp_path / "err", "complaint\n")
    server.start()
    code, out, err = ended(process)
    assert (code, out, err) == (0, "x" * 300_000, "complaint\n")


def test_output_that_was_asked_for_in_vain_is_asked_for_again(
    server: Scripted, life: Life, client: Starter, tmp_path: Path
) -> None:
    write(tmp_path / "out", "all of it\n")
    life.drops, life.final = [m.Logs], DONE
    code, out, _ = ended(client("run", "-q", "--", "true"))
    assert (code, out) == (0, "all of it\n")
    assert len(server.all(m.Logs)) == 2


def test_a_signal_in_the_daemons_absence_is_carried_out_when_it_is_back(
    server: Scripted, life: Life, client: Starter
) -> None:
    process = client("run", "-q", "--grace", "50", "--", "true")
    server.until(m.Wait)
    server.stop()
    said(process, b"went away")
    process.send_signal(signal.SIGINT)
    said(process, b"stopped when the daemon is back")
    server.start()
    assert ended(process)[0] == 130
    assert [(stop.runs, stop.signal, stop.grace) for stop in server.all(m.Stop)] == [
        (["a1"], signal.SIGINT, 50.0)
    ]
    assert [wait.tie for wait in server.all(m.Wait)][1:2] == [True]
    assert life.final is not None


def test_the_second_skips_the_grace_and_the_third_lets_go(
    server: Scripted, life: Life, client: Starter
) -> None:
    stubborn, left = client("run", "-q", "--", "true"), client("run", "-q", "--", "true")
    server.until(m.Wait, 2)
    life.keeps = [m.Stop]
    server.stop()
    for process in (stubborn, left):
        said(process, b"went away")
        for number in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
            said(process, b"stopped when the daemon is back")
    left.send_signal(signal.SIGHUP)
    assert ended(left)[0] == 130
    server.start()
    server.until(m.Stop, 2)
    assert [(stop.signal, stop.grace) for stop in server.all(m.Stop)] == [
        (signal.SIGINT, None),
        (signal.SIGTERM, 0.0),
    ]
    life.keeps = []
    server.restart()
    assert ended(stubborn)[0] == 130


def test_a_stop_without_an_answer_is_sent_again(
    server: Scripted, life: Life, client: Starter
) -> None:
    life.keeps = [m.Stop]
    process = client("run", "-q", "--", "true")
    server.until(m.Wait)
    process.send_signal(signal.SIGTERM)
    server.until(m.Stop)
    life.keeps = []
    server.restart()
    assert ended(process)[0] == 143
    assert [stop.signal for stop in server.all(m.Stop)] == [signal.SIGTERM] * 2


def test_a_stop_that_was_answered_is_not(server: Scripted, life: Life, client: Starter) -> None:
    process = client("run", "-q", "--", "true")
    server.until(m.Wait)
    life.keeps = [m.Stop]
    process.send_signal(signal.SIGTERM)
    stop = server.until(m.Stop)
    server.say(m.Stopped(id=stop.id, stopped=["a1"], survivors=[], elapsed_s=0.1))
    life.final = run(Status.CANCELLED, signal=signal.SIGTERM)
    server.restart()
    assert ended(process)[0] == 143
    assert len(server.all(m.Stop)) == 1


def test_a_signal_before_the_run_is_known_stops_it_once_it_is(
    server: Scripted, life: Life, client: Starter
) -> None:
    life.keeps = [m.Spawn]
    process = client("run", "-q", "--", "true")
    server.until(m.Spawn)
    server.stop()
    said(process, b"went away")
    process.send_signal(signal.SIGINT)
    said(process, b"stopped when the daemon is back")
    life.keeps = []
    server.start()
    assert ended(process)[0] == 130
    assert [stop.runs for stop in server.all(m.Stop)] == [["a1"]]


def test_a_signal_stops_a_run_of_which_only_the_first_event_tells(
    server: Scripted, life: Life, client: Starter
) -> None:
    """The reply comes when the command is executed: never, if its file system does not respond."""
    life.keeps = [m.Spawn]
    process = client("run", "-q", "--", "true")
    server.until(m.Spawn)
    spawn = server.all(m.Spawn)[0].id
    server.say(
        m.EventPush(id=spawn, event=Event(type="run_accepted", run_id="a1", agent_name="worker"))
    )
    process.send_signal(signal.SIGTERM)
    server.until(m.Stop)
    server.say(
        m.RunReply(
            id=spawn,
            run=run(Status.CANCELLED, started_at=None, signal=signal.SIGTERM, ended_at=NOON),
        )
    )
    assert ended(process)[0] == 143
    assert [(stop.runs, stop.signal) for stop in server.all(m.Stop)] == [(["a1"], signal.SIGTERM)]


def test_sigquit_is_passed_on_later_but_never_twice(
    server: Scripted, life: Life, client: Starter
) -> None:
    process = client("run", "-q", "--", "true")
    server.until(m.Wait)
    server.stop()
    said(process, b"went away")
    process.send_signal(signal.SIGQUIT)
    received(process, signal.SIGQUIT)
    life.drops = [m.Signal]
    server.start()
    server.until(m.Signal)
    said(process, b"the signal may have been lost with the connection")
    life.final = DONE
    server.restart()
    assert ended(process)[0] == 0
    assert [request.signal for request in server.all(m.Signal)] == [signal.SIGQUIT]


def test_what_left_the_queue_meanwhile_is_said_once(
    server: Scripted, life: Life, client: Starter
) -> None:
    life.now = run(Status.QUEUED, started_at=None)
    process = client("run", "--", "true")
    said(process, b"queued")
    server.until(m.Wait)
    server.restart()
    server.until(m.Info)
    server.until(m.Wait, 2)
    life.now = run()
    server.restart()
    said(process, b"starting")
    event = Event(type="run_started", run_id="a1", agent_name="worker")
    server.until(m.Wait, 3)
    server.say(m.EventPush(id=server.all(m.Watch)[-1].id, event=event))
    life.final = DONE
    server.restart()
    code, _, err = ended(process)
    assert code == 0
    assert "starting" not in err


def test_events_are_shown_once(server: Scripted, life: Life, client: Starter) -> None:
    process = client("run", "-v", "--", "true")
    server.until(m.Wait)
    for count in (1, 2):
        event = Event(
            type="run_progress", run_id="a1", agent_name="worker", message=f"step {count}"
        )
        server.say(m.EventPush(id=[*server.all(m.Spawn), *server.all(m.Watch)][-1].id, event=event))
        server.restart()
        server.until(m.Wait, count + 1)
    life.final = DONE
    server.restart()
    code, _, err = ended(process)
    assert (code, err.count("step 1"), err.count("step 2")) == (0, 1, 1)


def test_a_lost_run_is_70_with_its_reason(
    server: Scripted, life: Life, client: Starter, tmp_path: Path
) -> None:
    path = tmp_path / "status.json"
    process = client("run", "--json", "--status-file", str(path), "--", "true")
    server.until(m.Wait)
    life.final = LOST
    server.restart()
    code, out, err = ended(process)
    assert code == 70
    assert "[agent:worker] lost: it ended while no daemon was there to see it" in err
    assert msgspec.json.decode(out)["exit_code"] is None
    assert msgspec.json.decode(path.read_bytes()) == msgspec.json.decode(out)


def test_quiet_tells_of_a_lost_run(server: Scripted, life: Life, client: Starter) -> None:
    process = client("run", "-q", "--", "true")
    server.until(m.Wait)
    life.final = LOST
    server.restart()
    code, _, err = ended(process)
    assert code == 70
    assert (
        err.splitlines()[-1]
        == "sfactl: a1 ended as lost: it ended while no daemon was there to see it"
    )


@pytest.mark.parametrize(
    ("keep", "advice"),
    [(False, "the daemon stops it when it is back"), (True, "run a1 may continue. Check")],
)
def test_what_becomes_of_the_run_is_said_to_who_waited_in_vain(
    server: Scripted, client: Starter, keep: bool, advice: str
) -> None:
    process = client("run", "-q", *["--keep"] * keep, "--", "true", impatient=True)
    server.until(m.Wait)
    server.stop()
    code, _, err = ended(process)
    assert code == 69
    assert "did not come back within 0.6 s" in err
    assert advice in err
    assert "sfactl info a1" in err


# ---- verbs that wait


def test_waiting_goes_on_and_shows_each_once(server: Scripted, life: Life, client: Starter) -> None:
    process = client("wait", "a1", "a2")
    server.until(m.Wait)
    server.restart()
    server.until(m.Wait, 2)
    life.final = DONE
    life.drops = [m.Wait, m.Wait]
    server.restart()
    code, out, err = ended(process)
    assert (code, out, err) == (0, "a1  worker  completed\n" * 2, "")
    assert [wait.run for wait in server.all(m.Wait)] == ["a1"] * 5 + ["a2"]


def test_a_timeout_goes_on_over_restarts(server: Scripted, client: Starter) -> None:
    process = client("wait", "a1", "--timeout", "60")
    first = server.until(m.Wait)
    server.restart()
    second = server.until(m.Wait, 2)
    assert first.timeout is not None
    assert second.timeout is not None
    assert 40 < second.timeout < first.timeout
    process.kill()


def test_a_timeout_ends_while_the_daemon_is_away(server: Scripted, client: Starter) -> None:
    process = client("wait", "a1", "--timeout", "0.7")
    server.until(m.Wait)
    server.stop()
    began = time.monotonic()
    code, out, err = ended(process)
    assert (code, out) == (75, "")
    assert "a1 may not have ended" in err
    assert time.monotonic() - began < connection.RECONNECT / 2


def test_a_session_is_waited_for_over_a_restart_that_takes_longer(
    server: Scripted, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def connect_in_vain(sock: socket.socket, path: str) -> None:
        tried.append(path)
        if len(tried) != 2:
            return connect_path(sock, path)
        server.stop()
        try:
            return connect_path(sock, path)
        finally:
            server.start()

    monkeypatch.setattr(connection, "connect_path", connect_in_vain)
    life.drops, life.final = [m.Wait], DONE
    assert sessions.info("a1", socket=str(server.path), wait=0.001).result == "text\n"
    assert len(tried) == 3
    assert [wait.timeout for wait in server.all(m.Wait)] == [0.001, 0]


def test_waiting_in_vain_is_69(server: Scripted, client: Starter) -> None:
    process = client("wait", "a1", impatient=True)
    server.until(m.Wait)
    server.stop()
    code, _, err = ended(process)
    assert (code, "runs may continue without it" in err) == (69, True)


def test_a_stop_is_asked_for_until_it_is_answered(
    server: Scripted, life: Life, client: Starter
) -> None:
    life.drops = [m.Stop] * 3
    code, _, err = ended(client("stop", "a1", "--grace", "3"))
    assert code == 0
    assert err.startswith("stopped: a1")
    assert {(stop.runs[0], stop.grace) for stop in server.all(m.Stop)} == {("a1", 3.0)}
    assert len(server.all(m.Stop)) == 4


def test_a_stop_in_vain_says_what_may_live(server: Scripted, life: Life, client: Starter) -> None:
    life.keeps = [m.Stop]
    process = client("stop", "--all", impatient=True)
    server.until(m.Stop)
    server.stop()
    code, _, err = ended(process)
    assert (code, "may still be alive" in err) == (69, True)


@first(1)
@pytest.mark.parametrize("verb", ["wait", "stop"])
def test_ctrl_c_ends_waiting_for_a_daemon(
    server: Scripted, life: Life, client: Starter, verb: str
) -> None:
    life.keeps = [m.Stop]
    process = client(verb, "a1")
    server.until(m.Wait if verb == "wait" else m.Stop)
    server.stop()
    noticed(process)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "", "")


@first(1)
@pytest.mark.parametrize("as_json", [True, False])
def test_followers_go_on_where_they_were(
    server: Scripted, life: Life, client: Starter, tmp_path: Path, as_json: bool
) -> None:
    write(tmp_path / "out", "one\ntw")
    life.drops = [m.Logs]
    process = client("logs", "-f", "a1", *["--json"] * as_json)
    assert process.stdout is not None
    server.until(m.Wait)
    server.stop()
    write(tmp_path / "out", "o\n")
    meanwhile = process.stdout.readline() + process.stdout.readline()
    server.start()
    server.until(m.Wait, 2)
    write(tmp_path / "out", "three\n")
    life.final = DONE
    server.restart()
    code, out, err = ended(process)
    out = meanwhile.decode() + out
    lines = (
        [msgspec.json.decode(line)["text"] for line in out.splitlines()]
        if as_json
        else out.splitlines()
    )
    assert (code, lines, err) == (0, ["one", "two", "three"], "")
    assert len(server.all(m.Logs)) == 2


def test_following_in_vain_is_69_after_what_there_was(
    server: Scripted, client: Starter, tmp_path: Path
) -> None:
    write(tmp_path / "out", "one\n")
    process = client("logs", "-f", "a1", impatient=True)
    server.until(m.Wait)
    server.stop()
    code, out, err = ended(process)
    assert (code, out) == (69, "one\n")
    assert "may continue" in err


def without_events(request: m.Request) -> m.Reply:
    assert isinstance(request, m.Events)
    return m.EventPage(id=request.id, events=[], reached=0)


def test_followed_events_wait_for_a_daemon_for_as_long_as_it_is_away(
    server: Scripted, client: Starter, tmp_path: Path
) -> None:
    answer = server.answer
    server.answer = lambda request: (
        m.EventPage(id=request.id, events=[], reached=0)
        if isinstance(request, m.Events)
        else answer(request)
    )
    write(tmp_path / "out", "one\n")
    witness = client("logs", "-f", "a1", impatient=True)
    server.until(m.Wait)
    process = client("events", "-f", impatient=True)
    server.until(m.Events)
    server.until_read()
    server.stop()
    assert ended(witness)[0] == 69
    server.start()
    request = server.until(m.Events, 2)
    server.until_read()
    event = Event(
        type="run_failed", time=NOON, seq=7, run_id="a1", agent_name="worker", message="at last"
    )
    server.say(m.EventPush(id=request.id, event=event))
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"run_failed a1 (worker): at last\n")
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 130


def test_followed_events_wait_for_the_first_daemon(server: Scripted, client: Starter) -> None:
    server.answer = without_events
    server.stop()
    process = client("events", "-f", impatient=True)
    assert process.stderr is not None
    assert process.stderr.readline().endswith(b"; waiting for it\n")
    server.start()
    server.until(m.Events)
    server.until_read()
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 130


# ---- what is asked again, and what is not


QUESTIONS = [
    ["info", "a1"],
    ["why", "a1"],
    ["list"],
    ["tree"],
    ["status"],
    ["config"],
    ["recommend"],
    ["result", "a1"],
    ["logs", "a1"],
]


@first(2)
@pytest.mark.parametrize("words", [*QUESTIONS, ["pause", "a1"]], ids=lambda words: words[0])
def test_what_changes_nothing_is_asked_once_more(
    server: Scripted, client: Starter, words: list[str]
) -> None:
    answer, asked = server.answer, server.asked
    server.answer = lambda request: answer(request) if len(asked) > 1 else None
    code, _, err = ended(client(*words))
    assert code == 0, err
    assert len(asked) == 2
    assert msgspec.structs.replace(asked[0], id=0) == msgspec.structs.replace(asked[1], id=0)
    asked.clear()
    server.answer = lambda _request: None
    assert ended(client(*words))[0] == 69
    assert len(asked) == 2


ONCE = [
    ["resume", "a1"],
    ["approve", "a1"],
    ["deny", "a1"],
    ["report", "a1", "--turns", "1"],
    ["reserve", "a1", "--model", "m", "--input-tokens", "1", "--max-output-tokens", "1"],
    ["settle", "a1-1", "--input-tokens", "1", "--output-tokens", "1"],
    ["send", "a1", "hello"],
]


@first(2)
@pytest.mark.parametrize("words", ONCE, ids=lambda words: words[0])
def test_what_counts_is_never_sent_twice(
    server: Scripted, client: Starter, words: list[str]
) -> None:
    server.answer = lambda _request: None
    code, out, err = ended(client(*words))
    assert (code, out) == (69, "")
    assert f"The {words[0]} may have been carried out, and is not sent again" in err
    assert f"sfactl info {'RUN' if words[0] == 'settle' else 'a1'}" in err
    assert len(server.asked) == 1


def test_requests_that_count_or_write_are_not_repeated() -> None:
    never: set[type[m.Request]] = {
        m.Hello, m.Resume, m.Approve, m.Deny, m.ChangeLimits, m.Prune, m.Report, m.Reserve,
        m.Settle, m.Signal, m.Send
    }  # fmt: skip
    assert [kind for kind in never if kind.repeats] == []


def test_what_certainly_was_not_taken_is_sent_again(server: Scripted, client: Starter) -> None:
    """The daemon may restart between two lines of stdin."""
    process = client("send", "a1", "-")
    assert process.stdin is not None
    process.stdin.write(b"one\n")
    server.until(m.Send)
    server.until_read()
    server.restart()
    process.stdin.write(b"two\n")
    server.until(m.Send, 2)
    assert ended(process) == (0, "", "")
    assert [request.data for request in server.all(m.Send)] == [b"one\n", b"two\n"]


def test_who_greets_and_hangs_up_is_not_asked_in_a_hot_loop(
    server: Scripted, client: Starter
) -> None:
    server.answer = lambda _request: None
    process = client("wait", "a1")
    server.until(m.Wait, 2)
    began = time.monotonic()
    server.until(m.Wait, 6)
    assert time.monotonic() - began > 3 * connection.AGAIN
    process.kill()


def test_a_connection_that_is_lost_is_told_from_one_that_was_never_made(server: Scripted) -> None:
    server.answer = lambda _request: None
    with Client(server.path) as one, pytest.raises(ConnectionLost) as raised:
        one.call(m.Report(id=0, turns=1), m.RunReply)
    assert (raised.value.kind, raised.value.code) == ("gone", 69)


def test_descriptors_of_an_answer_are_those_of_the_second(server: Scripted, life: Life) -> None:
    life.drops = [m.Logs]
    with Client(server.path) as one:
        _, descriptors = one.ask(m.Logs(id=0, run="a1"), m.LogFiles)
    assert all(stat.S_ISREG(os.fstat(descriptor).st_mode) for descriptor in descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def test_an_answer_before_the_end_is_taken(server: Scripted, client: Starter) -> None:
    """The daemon reports the end of the run, and dies: the client does not wait for it."""
    process = client("run", "-q", "--", "true", impatient=True)
    waiting = server.until(m.Wait)
    server.until_read()
    server.say(m.RunReply(id=waiting.id, run=FAILED))
    server.stop()
    assert ended(process)[0] == 3


SWALLOWS = """
import os, signal
from sfactl.connecting import signals
signals.end_waits()
reader, _ = os.pipe()
for number in (signal.SIGINT, signal.SIGINT):
    try:  # as msgspec does where it makes a decoder
        os.kill(os.getpid(), number)
    except KeyboardInterrupt:
        pass
    try:
        signals.wait_readable(reader, None)
    except KeyboardInterrupt:
        print("ended", flush=True)
assert not signals.taken()
"""


def test_an_interrupt_that_a_library_has_swallowed_ends_the_next_wait() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWS], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.stdout, done.stderr) == ("ended\nended\n", "")
