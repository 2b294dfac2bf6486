"""A daemon whose fleet has one node: this one. A thread stands for the actor, so that no Ray is
needed."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

from sfactl.commands import fetch, spawn
from sfactl.connecting.connection import Client
from sfactl.exits import Quit
from sfactl.options.spawn import SpawnOptions
from sfad.features.fleet.messages import ACTOR_VERSION, FleetPush, FleetTold, ServeFleet
from sfad.protocol import messages as m
from sfad.protocol.types import Status
from tests.harness import Daemon, running, wait_until
from tests.users import FIRST, SECOND, Failed, as_user, needs_root, open_directory, readable_by_all

from .test_archives import BEFORE, content_of, fill, repository
from .test_git_variables import LEADING, everything_of

pytestmark = pytest.mark.needs("git")

CONFIG = '[fleet]\naddress = "127.0.0.1:1"\nnode = "n1"\nship_max = "64 KiB"\n'
WORK = (
    "echo 22 > changed; rm gone/deep; mkdir new; echo 4 > new/deep; git add --all; "
    "git commit --quiet --message=work"
)


class Actor:
    """Stands for the actor of a node: places each run there."""

    def __init__(self, daemon: Daemon) -> None:
        self._client = daemon.client()
        self._client.call(ServeFleet(id=0, node="n1", version=ACTOR_VERSION), m.Done)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(Quit, OSError):
            while True:
                for answer in self._client.arrived():
                    if isinstance(answer.reply, FleetPush) and answer.reply.what == "place":
                        self._client.send(FleetTold(id=0, run=answer.reply.run, node="n1"))
                    for descriptor in answer.descriptors:
                        os.close(descriptor)

    def end(self) -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(self._client.fileno())) as sock:
            sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._client.close()


@contextmanager
def placed(daemon: Daemon) -> Iterator[None]:
    actor = Actor(daemon)
    try:
        yield
    finally:
        actor.end()


def shipped(daemon: Daemon) -> list[str]:
    """Return what is kept of files."""
    return sorted(os.listdir(f"{daemon.state_dir}-shipped"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return repository(fill(tmp_path / "project", BEFORE))


def test_a_killed_daemon_loses_nothing_and_prune_removes_the_copy(
    tmp_path: Path, project: Path
) -> None:
    before = content_of(project)
    after = {path: what for path, what in before.items() if path != "gone/deep"} | {
        "changed": b"22\n",
        "new/deep": b"4\n",
    }
    with running(tmp_path, config=CONFIG) as daemon:
        with placed(daemon):
            command = ("sh", "-c", f"{WORK}; exec sleep 300")
            run = daemon.sfactl(
                "spawn", "--fleet", "--ship", str(project), "--timeout", "100", "--", *command
            ).stdout.strip()
            wait_until(
                lambda: "+22" in daemon.sfactl("fetch", run, "--patch").stdout, "it has worked"
            )
        daemon.kill()
        daemon.restart()
        assert content_of(project) == before
        daemon.sfactl("stop", run)
        found = json.loads(daemon.sfactl("fetch", run, "--json").stdout)
        assert (found["added"], found["changed"], found["deleted"]) == (
            ["new/deep"],
            ["changed"],
            ["gone/deep"],
        )
        assert content_of(project) == after
        assert len(shipped(daemon)) == 2
        daemon.sfactl("prune", "--older-than", "0s")
        assert shipped(daemon) == []
        assert daemon.sfactl("fetch", run).returncode == 66


@pytest.mark.parametrize("name", LEADING)
def test_no_variable_leads_git_of_a_run_out_of_its_copy(
    tmp_path: Path, project: Path, name: str
) -> None:
    """As a hook of git sets them, which starts the run."""
    elsewhere = repository(fill(tmp_path / "elsewhere", {"theirs": b""}))
    before = everything_of(elsewhere)
    variable = f"--env={name}={elsewhere / LEADING[name]}"
    show = "git log --format=%s --name-status; git rev-parse --show-toplevel; pwd -P"
    with running(tmp_path, config=CONFIG) as daemon, placed(daemon):
        words = ["--fleet", "--ship", str(project), variable, "--", "sh", "-ec", f"{WORK}; {show}"]
        done = daemon.sfactl("run", "--quiet", *words)
        assert done.returncode == 0, done.stderr
    *log, top, cwd = done.stdout.splitlines()
    assert log[:6] == ["work", "", "M\tchanged", "D\tgone/deep", "A\tnew/deep", "shipped"]
    assert top == cwd
    assert everything_of(elsewhere) == before


def test_changes_that_are_too_large_stay_there(tmp_path: Path, project: Path) -> None:
    with running(tmp_path, config=CONFIG) as daemon, placed(daemon):
        done = daemon.sfactl(
            "run",
            "--fleet",
            "--ship",
            str(project),
            "--",
            "sh",
            "-c",
            "head -c 70000 /dev/zero > large",
        )
        assert done.returncode == 0, done
        done = daemon.sfactl("fetch", done.stderr.split()[-1])
        assert (
            done.returncode,
            "have 70000 bytes, and fleet.ship_max of the node is 65536" in done.stderr,
        ) == (1, True), done


def test_what_the_client_has_and_does_not_send_is_named(tmp_path: Path, project: Path) -> None:
    fill(project, {"out": "-> /etc/passwd", "sub/.git/config": b""})
    with running(tmp_path, config=CONFIG) as daemon, placed(daemon):
        done = daemon.sfactl("run", "--fleet", "--ship", str(project), "--", "ls", "-A")
        assert done.stdout.split() == [".git", "changed", "gone", "kept", "link"]
        assert "not sent: out: the link leads out of the directory, to /etc/passwd" in done.stderr
        (project / ".git").rename(project / "broken")
        (project / ".git").write_text("gitdir: /nowhere\n")
        done = daemon.sfactl("run", "--fleet", "--ship", str(project), "--", "true")
        assert (done.returncode, "not a git repository: /nowhere" in done.stderr) == (2, True), done


def test_a_run_without_its_files_fails(tmp_path: Path, project: Path) -> None:
    with running(tmp_path, config=CONFIG) as daemon:
        run = daemon.sfactl("spawn", "--fleet", "--ship", str(project), "--", "true").stdout.strip()
        shutil.rmtree(f"{daemon.state_dir}-shipped")
        with placed(daemon), daemon.client() as client:
            ended = client.call(m.Wait(id=0, run=run), m.RunReply).run
        assert ended.status is Status.FAILED
        assert ended.reason is not None
        assert f"the files of {project} are not here any more" in ended.reason.message


# ---- Root's daemon serves another user


@pytest.fixture
def users() -> Iterator[Daemon]:
    config = CONFIG + '[access]\nusers = "all"\n'
    with (
        open_directory() as place,
        running(place, config=config, wrap=readable_by_all(place)) as daemon,
        placed(daemon),
    ):
        yield daemon


def printed(do: Callable[..., int], **given: Any) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        do(**given)
    return out.getvalue()


@needs_root
def test_the_copy_is_the_users_who_alone_can_fetch_it(users: Daemon) -> None:
    project = repository(fill(users.directory / "project", BEFORE))
    for path in (users.directory / "project", *project.rglob("*")):
        os.chown(path, FIRST, FIRST, follow_symlinks=False)
    where = str(users.socket)

    def start() -> str:
        os.environ["HOME"] = "/nonexistent"
        os.chdir(project)
        command = ["sh", "-c", f"id -u > owner; {WORK}"]
        wanted = SpawnOptions(command=command, fleet=True, ship=".", socket=where, quiet=True)
        run = printed(spawn.start, wanted=wanted).strip()
        with Client(users.socket) as client:
            assert client.call(m.Wait(id=0, run=run), m.RunReply).run.status is Status.COMPLETED
        return run

    run = as_user(FIRST, start)
    kept = Path(f"{users.state_dir}-shipped")
    (copy,) = [path for path in kept.iterdir() if path.is_dir()]
    assert (copy / "own").stat().st_uid == FIRST
    assert (copy / "own").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_uid for path in (kept, copy, kept / f"{run}.json")] == [0, 0, 0]
    with pytest.raises(Failed, match="no run has the id"):
        as_user(SECOND, lambda: printed(fetch.fetch, run=run, to="/nonexistent", socket=where))
    done = users.sfactl("fetch", run)
    assert (done.returncode, "who alone can fetch its files" in done.stderr) == (77, True), done
    as_user(FIRST, lambda: printed(fetch.fetch, run=run, socket=where))
    assert (project / "owner").read_text() == f"{FIRST}\n"
    assert (project / "owner").stat().st_uid == FIRST
    assert not (project / "gone").exists()
