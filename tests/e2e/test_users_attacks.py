"""Users of root's daemon look for what is another user's, or root's, and for ways to keep others
waiting.

`docs/threat-model.md` says what happens.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.features.advice.messages import Recommend
from sfad.protocol import messages as m
from sfad.protocol.types import After, Claim, RunInfo
from tests.harness import Daemon, spawn, wait_until
from tests.users import FIRST, SECOND, as_user, asked_as, needs_root, waiting_as_user

pytestmark = needs_root

CONFIG = '[access]\nusers = "all"\n[groups.gpu]\nslots = 1\n'
PATH = [b"PATH=/usr/bin:/bin"]


@pytest.fixture
def private(place: Path) -> Path:
    """A directory that only root can enter."""
    made = place / f"private-{time.monotonic_ns()}"
    made.mkdir(mode=0o700)
    return made


def start(daemon: Daemon, uid: int, *argv: str, **options: Any) -> RunInfo:
    where: dict[str, Any] = {"cwd": b"/", "env": PATH}
    words = [word.encode() for word in argv]
    (reply,) = asked_as(daemon.socket, [m.Spawn(id=0, argv=words, **(where | options))], uid=uid)
    assert isinstance(reply, m.RunReply), reply
    return reply.run


def output(daemon: Daemon, run: str) -> str:
    """Return what a run has written, once it has ended."""
    with daemon.client() as client:
        client.call(m.Wait(id=client.next_id(), run=run, timeout=60), m.RunReply)
    return (daemon.state_dir / "output" / f"{run}.out").read_text()


# ---- what is another user's


@pytest.mark.parametrize("mode", [0o700, 0o750])
def test_settings_where_the_user_cannot_look_are_not_read(
    everyones: Daemon, place: Path, private: Path, mode: int
) -> None:
    """Root's address has a password. The files are readable, and the directory is not."""
    private.chmod(mode)
    address = "http://root:secret@127.0.0.1:9"
    (private / "settings.json").write_text(json.dumps({"env": {"ANTHROPIC_BASE_URL": address}}))
    program = place / "claude"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    env = [f"PATH={place}:/usr/bin:/bin".encode(), b"CLAUDE_CONFIG_DIR=" + os.fsencode(private)]
    run = start(everyones, FIRST, "claude", "-p", "hi", env=env)
    assert not any("BASE_URL" in word for word in run.argv), run.argv
    # with 0750 a group of the user might let it in, which the daemon does not know
    assert (run.direct is None) == (mode == 0o700)


def test_a_file_without_the_right_to_read_it_is_no_input(everyones: Daemon, private: Path) -> None:
    """Each user can open any file with O_PATH, if it can enter its directory."""
    private.chmod(0o755)
    secret = private / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)

    def submit() -> str:
        with Client(everyones.socket) as client:
            request = m.Spawn(
                id=client.next_id(), argv=[b"sh", b"-c", b"cat; cat /proc/self/fd/0; :"], cwd=b"/",
                env=PATH, stdin="descriptor", descriptors=1,
            )  # fmt: skip
            client.send(request, [os.open(secret, os.O_PATH)])
            reply = client.arrived()[0].reply
            assert isinstance(reply, m.RunReply), reply
            return reply.run.id

    assert output(everyones, as_user(FIRST, submit)) == ""


def test_what_another_users_run_was_told_of_itself_gives_no_right(everyones: Daemon) -> None:
    other = start(everyones, SECOND, "sleep", "300", name="other")
    told = Path(f"/proc/{other.pid}/environ").read_bytes().split(b"\0")
    env = [*PATH, *(item for item in told if item.startswith(b"SFA"))]
    found = start(everyones, FIRST, "true", env=env, claim=Claim(names=["other"]))
    assert (found.parent_id, found.root_id, found.depth, found.user) == (
        None,
        found.id,
        0,
        str(FIRST),
    )


def test_a_key_is_a_users_own(everyones: Daemon) -> None:
    runs = [start(everyones, uid, "true", key="k").id for uid in (FIRST, SECOND, FIRST)]
    assert (runs[0], runs[0] != runs[1]) == (runs[2], True)


def test_no_run_waits_for_another_users(everyones: Daemon) -> None:
    other = start(everyones, SECOND, "sleep", "300").id
    asks = [
        m.Spawn(id=0, argv=[b"true"], cwd=b"/", env=PATH, after=[After(run=run)])
        for run in (other, "a999")
    ]
    replies = asked_as(everyones.socket, asks, uid=FIRST)
    errors = [(reply.code, reply.message) for reply in replies if isinstance(reply, m.Error)]
    assert [(code, text.replace(other, "a999")) for code, text in errors] == [errors[1]] * 2


def test_a_user_whom_a_run_has_become_sees_nothing_else_of_its_own(everyones: Daemon) -> None:
    """`su` inside of a run gives no way out of it."""
    other = start(everyones, SECOND, "sleep", "300").id
    code = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
with Client({str(everyones.socket)!r}) as client:
    client.call(m.List(id=client.next_id()), m.RunList)  # it imports nothing after that
os.setgroups([]); os.setresgid(*[{SECOND}] * 3); os.setresuid(*[{SECOND}] * 3)
with Client({str(everyones.socket)!r}) as client:
    print([run.id for run in client.call(m.List(id=client.next_id()), m.RunList).runs])
    start = m.Spawn(id=client.next_id(), argv=[b"true"], cwd=b"/", env=[])
    for request in (m.Stop(id=client.next_id(), runs=[{other!r}]), start):
        client.send(request)
        print(type(client.arrived()[0].reply).__name__)
"""
    with everyones.client() as client:
        reply = spawn(client, [sys.executable, "-c", code], cwd=b"/", env=PATH)
        assert isinstance(reply, m.RunReply)
    assert output(everyones, reply.run.id).splitlines() == [
        f"['{reply.run.id}']",
        "Error",
        "RunReply",
    ]


# ---- what root does with another user's run


def test_root_starts_no_command_of_another_user(everyones: Daemon, private: Path) -> None:
    """`rerun` would execute it as root, in a directory of that user's."""
    mark = private / "mark"
    run = start(everyones, FIRST, "sh", "-c", f"touch {mark}")
    for words in (["rerun"], ["rerun", "--edit"]):
        again = everyones.sfactl(*words, run.id)
        assert again.returncode == 77
        assert f"run {run.id} belongs to {FIRST}, and its command would run as you" in again.stderr
    assert f"touch {mark}" in everyones.sfactl("rerun", "--dry-run", run.id).stdout
    assert not mark.exists()


def test_a_command_of_another_user_does_not_steer_roots_terminal(everyones: Daemon) -> None:
    run = start(everyones, FIRST, "true", "\x1b]0;title\x07")
    words = [sys.executable, "-m", "sfactl", "rerun", "--dry-run", run.id]
    end, terminal = pty.openpty()
    with open(end, "rb", buffering=0) as screen:
        try:
            subprocess.run(words, stdout=terminal, env=everyones.env, check=True, timeout=60)
            shown = screen.read(4096)
        finally:
            os.close(terminal)
    assert b"\\x1b]0;title\\x07" in shown
    assert b"\x1b" not in shown


# ---- the others' shares


@pytest.mark.parametrize("what", ["events", "summary", "recommend", "prune"])
def test_a_user_who_asks_for_much_keeps_no_other_waiting(
    everyones: Daemon, private: Path, what: str
) -> None:
    """Such requests are answered one after the other, because each keeps a CPU busy."""
    kinds: dict[str, tuple[type[m.Request], dict[str, Any]]] = {
        "events": (m.Events, {"rows": 1000}),
        "summary": (m.Summarise, {"since": 0.0}),
        "recommend": (Recommend, {}),
        "prune": (m.Prune, {"keep": 1000}),
    }
    kind, fields = kinds[what]
    most = 600
    sent = private / "sent"
    private.chmod(0o777)

    def flood() -> list[float]:
        with Client(everyones.socket) as client:
            for _ in range(most):
                client.send(kind(id=client.next_id(), **fields))
            sent.touch()
            answered: list[float] = []
            while len(answered) < most:
                found = client.arrived()
                assert not any(isinstance(each.reply, m.Error) for each in found), found
                answered += [time.monotonic()] * len(found)
            return answered

    def ask() -> tuple[float, float]:
        with Client(everyones.socket) as client:
            at = time.monotonic()
            client.send(kind(id=client.next_id(), **fields))
            client.arrived()
        return at, time.monotonic()

    answered: list[float] = []
    with waiting_as_user(FIRST, flood) as (_, go), waiting_as_user(SECOND, ask) as (_, ask_now):
        thread = threading.Thread(target=lambda: answered.extend(go()))
        thread.start()
        wait_until(sent.exists, "all are sent")
        asked, told = ask_now()
        thread.join()
    assert len(answered) == most
    # how many are answered between depends on when the machine lets the process ask and hear
    assert asked < told < max(answered)
