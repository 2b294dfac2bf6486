"""What only a kernel with all controllers shows, on the service of the system. `test_vm` has this
file run in the machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ANN, BEN = 1001, 1002
PATIENCE = 300.0
"""Seconds. The machine is emulated, and this one may be busy."""
SFAD, SFACTL = (str(Path(sys.prefix, "bin", name)) for name in ("sfad", "sfactl"))

CGROUP = (
    "own = '/sys/fs/cgroup' + "
    "open('/proc/self/cgroup').read().strip().removeprefix('0::').removesuffix('/self')\n"
)
EATER = CGROUP + (
    "print('memory.max', open(f'{own}/memory.max').read(), flush=True)\nbytearray(b'x') "
    "* (256 << 20)"
)
FORKER = (
    CGROUP
    + """
import os, time
print('pids.max', open(f'{own}/pids.max').read(), flush=True)
try:
    for count in range(200):
        if not os.fork():
            time.sleep(600)
except OSError as error:
    print(error.strerror, 'after', count, flush=True)
"""
)


def run(*words: str, uid: int = 0, code: int | None = 0) -> str:
    """Run a command as a user, and return its output."""
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
    command = [
        *become,
        "env",
        "-i",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/",
        "LC_ALL=C.UTF-8",
        *words,
    ]
    done = subprocess.run(
        command,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert code in (None, done.returncode), (
        f"{words}: {done.returncode}: {done.stdout}{done.stderr}"
    )
    return done.stdout


def until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.2)


def runs(uid: int) -> dict[str, dict[str, Any]]:
    """Return the live runs that a user sees, by name."""
    shown: list[dict[str, Any]] = json.loads(
        run(SFACTL, "list", "--json", "--status", "running", uid=uid)
    )["runs"]
    return {each["name"]: each for each in shown}


def show(key: str) -> str:
    return run("systemctl", "show", "--value", f"--property={key}", "sfad.service").strip()


def info(name: str, uid: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(SFACTL, "info", "--json", name, uid=uid))
    return found


@pytest.fixture(scope="module", autouse=True)
def _service() -> Iterator[None]:
    run(SFAD, "install", "--system")
    yield
    run(SFAD, "install", "--remove", "--yes")


def test_memory_and_processes_are_bounded_by_the_kernel() -> None:
    run(
        SFACTL,
        "run",
        "--name",
        "eater",
        "--limit",
        "memory=64MiB",
        "--",
        sys.executable,
        "-c",
        EATER,
        uid=ANN,
        code=4,
    )
    assert set(json.loads(run(SFACTL, "status", "--json"))["enforcement"].values()) == {"kernel"}
    assert run(SFACTL, "logs", "eater", uid=ANN).split() == ["memory.max", str(64 << 20)]
    reason = info("eater", ANN)["reason"]
    assert (reason["kind"], reason["limit_kind"]) == ("limit", "memory")

    run(
        SFACTL,
        "spawn",
        "--name",
        "forker",
        "--limit",
        "pids=20",
        "--",
        sys.executable,
        "-c",
        FORKER,
        uid=ANN,
    )
    until(
        lambda: "unavailable" in run(SFACTL, "logs", "forker", uid=ANN),
        "the kernel refuses a process",
    )
    said = run(SFACTL, "logs", "forker", uid=ANN)
    assert said.startswith("pids.max 20\n")
    assert 10 <= int(said.split()[-1]) < 20


def test_a_child_run_is_bounded_below_a_parent_that_has_started() -> None:
    """The parent's processes move into a cgroup of their own, so that its cgroup can enable a
    controller for the child."""
    script = f'{SFACTL} spawn --name child --limit pids=20 -- {sys.executable} -c "$1"; sleep 600'
    run(SFACTL, "spawn", "--name", "parent", "--", "sh", "-c", script, "sh", FORKER, uid=ANN)
    until(
        lambda: "unavailable" in run(SFACTL, "logs", "child", uid=ANN, code=None),
        "the kernel refuses a process",
    )
    said = run(SFACTL, "logs", "child", uid=ANN)
    assert said.startswith("pids.max 20\n")
    assert 10 <= int(said.split()[-1]) < 20
    parent = info("parent", ANN)
    assert Path(f"/proc/{parent['pid']}/cgroup").read_text().endswith(f"/{parent['id']}/self\n")
    assert Path(f"/proc/{parent['pid']}/stat").read_text().split()[2] == "S"
    run(SFACTL, "stop", "parent", uid=ANN, code=None)
    until(lambda: not {"parent", "child"} & set(runs(ANN)), "both are stopped")


def test_two_users_on_one_daemon() -> None:
    for uid in (ANN, BEN):
        run(
            SFACTL,
            "spawn",
            "--name",
            f"of-{uid}",
            "--",
            "sh",
            "-c",
            "id -u; exec sleep 600",
            uid=uid,
        )
        until(
            lambda uid=uid: run(SFACTL, "logs", f"of-{uid}", uid=uid) == f"{uid}\n",  # type: ignore[misc]
            "it runs as the user",
        )
    assert set(runs(ANN)) == {"of-1001"}
    assert set(runs(BEN)) == {"of-1002"}
    run(SFACTL, "stop", "of-1001", uid=BEN, code=None)
    assert set(runs(0)) == {"of-1001", "of-1002"}
    for file in Path("/var/lib/sfad/output").iterdir():
        run("cat", str(file), uid=BEN, code=1)


def test_a_crash_keeps_the_runs_and_a_stop_ends_them() -> None:
    before = {name: each["pid"] for name, each in runs(0).items()}
    daemon = show("MainPID")
    os.kill(int(daemon), signal.SIGSEGV)
    until(
        lambda: show("MainPID") not in ("0", daemon) and show("ActiveState") == "active",
        "the next daemon is there",
    )
    assert {name: each["pid"] for name, each in runs(0).items()} == before
    assert show("StatusText").startswith(f"{len(before)} runs live, 0 queued")
    run("systemctl", "stop", "sfad.service")
    assert not any(os.path.exists(f"/proc/{pid}") for pid in before.values())
    assert show("Result") == "success"
