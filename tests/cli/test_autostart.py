"""The first spawn starts a daemon if none is running; inside a run no daemon is started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sfactl.connecting import start_daemon

from .conftest import PATIENCE, SFACTL, World


@pytest.fixture
def alone(world: World) -> Iterator[World]:
    """A place where a daemon may be started, without the user's systemd. The daemon is stopped
    after the test."""
    del world.env["SFAD_AUTOSTART"]
    world.env["XDG_RUNTIME_DIR"] = str(world.directory / "runtime")
    yield world
    done = world.sfactl("status", "--json", code=None)
    if done.returncode == 0:
        stop(world.json("status")["pid"])


def stop(pid: int) -> None:
    """Stop a daemon that is not our child, and wait for its end."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        assert select.select([pidfd], [], [], PATIENCE)[0]
        os.close(pidfd)


def test_the_first_run_starts_one_and_says_so_once(alone: World) -> None:
    # where it is without a login session, as in cron
    alone.env["SFAD_SOCKET"] = str(alone.state / "sfad.sock")
    first = alone.sfactl("run", "-q", "--", "echo", "hello")
    assert first.stdout == "hello\n"
    assert first.stderr.startswith("sfactl: no daemon was running; started one")
    assert alone.sfactl("run", "-q", "--", "true").stderr == ""


def test_it_is_nobodys_child_and_holds_nothing_of_ours(alone: World) -> None:
    readable, writable = os.pipe()
    client = subprocess.Popen(
        [*SFACTL, "spawn", "-q", "--", "sleep", "60"], env=alone.env, pass_fds=[writable]
    )
    assert client.wait(PATIENCE) == 0
    os.close(writable)
    assert select.select([readable], [], [], 1)[0], (
        "a descriptor of the client's caller is still open in the daemon"
    )
    os.close(readable)
    pid = alone.json("status")["pid"]
    assert os.getsid(pid) not in (os.getsid(0), 0)
    assert os.getpgid(pid) != os.getpgid(0)
    assert oct(os.stat(alone.state / "sfad.log").st_mode & 0o777) == "0o600"


def test_clients_that_come_at_once_end_with_one_daemon(alone: World) -> None:
    clients = [
        subprocess.Popen(
            [*SFACTL, "spawn", "--", "true"],
            env=alone.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    results = [client.communicate(timeout=PATIENCE) for client in clients]
    assert [client.returncode for client in clients] == [0] * 4, results
    assert sum(b"started one" in err for _, err in results) == 1
    assert len({out for out, _ in results}) == 4


def test_a_daemon_that_cannot_start_tells_the_user(alone: World) -> None:
    alone.config.write_text("nonsense = 1\n")
    done = alone.sfactl("spawn", "--", "true", code=69)
    assert "could not be started" in done.stderr
    assert "nonsense" in done.stderr


def test_a_place_that_cannot_be_made_is_named_with_what_chooses_another(alone: World) -> None:
    """As in a home that is not the user's to write."""
    state = alone.directory / "file" / "state"
    state.parent.touch()
    done = alone.sfactl("run", "--", "true", code=69, SFAD_STATE_DIR=str(state))
    assert done.stderr == (
        f"sfactl: no daemon can be started: {state}: Not a directory; "
        "to choose another directory: SFAD_STATE_DIR\n"
    )


FAKE_SYSTEMD_RUN = """#!/bin/sh
echo "$@" >> "$XDG_RUNTIME_DIR/asked"
while [ "$1" != -- ]; do shift; done
shift
setsid "$@" --ready-fd 9 9>"$XDG_RUNTIME_DIR/ready" >/dev/null 2>&1 </dev/null &
read ready < "$XDG_RUNTIME_DIR/ready"
"""


@pytest.fixture
def systemd(alone: World, tmp_path: Path) -> World:
    """A user's systemd that has no installed unit of sfad, but starts transient ones."""
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd" / "private").touch()
    os.mkfifo(tmp_path / "ready")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("systemctl", "#!/bin/sh\nexit 5\n"), ("systemd-run", FAKE_SYSTEMD_RUN)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    alone.env |= {"XDG_RUNTIME_DIR": str(tmp_path), "PATH": f"{programs}:{alone.env['PATH']}"}
    return alone


def test_the_users_systemd_is_asked_for_a_delegated_unit(systemd: World, tmp_path: Path) -> None:
    assert "in its own systemd unit" in systemd.sfactl("run", "-q", "--", "true").stderr
    asked = (tmp_path / "asked").read_text()
    for word in (
        "--user",
        "Delegate=yes",
        "KillMode=process",
        "Restart=on-failure",
        "-P -m sfad sweep --stop-post",
        f"--setenv=SFAD_SOCKET={systemd.socket}",
        "-P -m sfad serve",
    ):
        assert word in asked


def test_the_unit_names_an_interpreter_whose_path_has_a_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", '/a place/with "quotes"/python')
    assert (
        r'--property=ExecStopPost="/a place/with \"quotes\"/python" -P -m sfad sweep --stop-post'
        in start_daemon.transient({})
    )


def test_a_systemd_that_fails_is_done_without(systemd: World, tmp_path: Path) -> None:
    (tmp_path / "bin" / "systemd-run").write_text("#!/bin/sh\nexit 1\n")
    assert "that logs to" in systemd.sfactl("run", "-q", "--", "true").stderr


def test_only_spawn_and_run_start_one(alone: World) -> None:
    for words in (
        ["list"],
        ["status"],
        ["stop", "--all"],
        ["spawn", "--socket", str(alone.socket), "--", "true"],
    ):
        assert "does not exist" in alone.sfactl(*words, code=69).stderr
    assert not alone.state.exists()


def test_it_can_be_forbidden(alone: World) -> None:
    assert (
        "SFAD_AUTOSTART=0" in alone.sfactl("run", "--", "true", code=69, SFAD_AUTOSTART="0").stderr
    )


@pytest.mark.parametrize("name", ["SFA_RUN_ID", "SFA_COOKIE", "SFA_CALL_CHAIN", "SFA_DEPTH"])
def test_never_inside_a_run(alone: World, name: str) -> None:
    assert "inside a run" in alone.sfactl("run", "--", "true", code=69, **{name: "0"}).stderr
    assert not alone.state.exists()


def test_the_tag_tells_without_any_variable(alone: World) -> None:
    script = "ulimit -S -q 1234; $SFACTL run -- true"
    done = subprocess.run(
        ["bash", "-c", script],
        env=alone.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, "RLIMIT_MSGQUEUE" in done.stderr) == (69, True)
