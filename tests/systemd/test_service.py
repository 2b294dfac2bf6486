"""The packaged units under a real systemd: what happens to runs when the daemon is killed,
reloaded, stopped, or does not come back. systemd is booted in namespaces of its own; there it sees
no cgroup controllers."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sfad.processes.kernel import tells_exits
from tests.harness import wait_until

from .booted import NEWER, UID, USER, Booted, Service, booted, impossible

pytestmark = pytest.mark.skipif(
    impossible() is not None, reason=f"cannot boot a systemd: {impossible()}"
)

MARKS = ("one", "two")
KEEPER = Path(__file__).with_name("keeper.py")
HYBRID = os.path.exists("/sys/fs/cgroup/unified/cgroup.procs")


@pytest.fixture(scope="module")
def unified() -> Iterator[Booted]:
    """A systemd with cgroup v2 only."""
    with booted("unified") as system:
        yield system


@contextmanager
def serving(service: Service, *lines: str) -> Iterator[Service]:
    """Start the service with these lines in its section [Service], and remove all of it
    afterwards."""
    service.set_config("")
    service.configure(*lines)
    service.systemctl("reset-failed")
    try:
        service.systemctl("start", "sfad.service")
        yield service
    except BaseException:
        print(service.system.run("journalctl", "--no-pager", "--lines=200"))
        raise
    finally:
        service.systemctl("stop", "sfad.service", "sfad-sweep.service", code=None)
    assert service.alive() == []


def crowd(service: Service) -> dict[str, int]:
    """Start two runs that count."""
    for mark in MARKS:
        service.spawn(mark)
    runs = service.runs()
    assert len(runs) == len(MARKS)
    return runs


def goes_on(service: Service, runs: dict[str, int]) -> None:
    """The same runs, with the same processes, still count."""
    assert service.runs() == runs
    before = [service.ticks(mark) for mark in MARKS]
    wait_until(
        lambda: all(service.ticks(mark) > ticks for mark, ticks in zip(MARKS, before, strict=True)),
        "they count",
    )


def shows(service: Service, text: str) -> None:
    """`systemctl status` says what the daemon does."""
    wait_until(lambda: text in service.show("StatusText"), f"the status text has {text!r}")


def killed(service: Service) -> int:
    """Kill the daemon, and return the pid of the one that takes over."""
    runs, before = crowd(service), service.pid
    shows(service, "2 runs live, 0 queued")
    service.signal(signal.SIGSEGV)
    service.restarted(before)
    goes_on(service, runs)
    assert service.show("NRestarts") == "1"
    assert service.swept() == ""
    return service.pid


def reloaded(service: Service) -> None:
    """A reload reads another config. The daemon must not re-execute itself, which would read it in
    any case."""
    pid = service.pid
    service.set_config("[guard]\nmax_dept = 7\n")
    service.systemctl("reload", "sfad.service", code=1)
    shows(service, "2 runs live, 0 queued; config rejected: ")
    service.set_config("[guard]\nmax_depth = 7\n")
    service.systemctl("reload", "sfad.service")
    assert "config reloaded" in service.journal()
    same_and_active(service, pid)
    assert "re-executing" not in service.journal()


def same_and_active(service: Service, pid: int) -> None:
    """The unit was `reloading` in between, and in no other state."""
    wait_until(lambda: service.show("ActiveState") == "active", "it is active again")
    assert service.show("MainPID", "NRestarts") == f"{pid}\n1"


def stopped(service: Service) -> None:
    """The daemon ends its runs and itself, so that systemd has nothing left to do."""
    service.systemctl("stop", "sfad.service")
    assert service.alive() == []
    assert service.show("ExecMainStatus", "Result", "ActiveState") == "0\nsuccess\ninactive"


def given_up(service: Service) -> None:
    """No daemon starts: the runs are ended, other processes are not."""
    service.system.run("systemd-run", "--quiet", "--unit=stranger", "sleep", "98764")
    if not service.runs():
        crowd(service)
    service.configure("ExecStart=", "ExecStart=/bin/false", "[Unit]", "StartLimitBurst=2")
    service.signal(signal.SIGKILL)
    wait_until(lambda: service.show("ActiveState") == "failed", "systemd gives up")
    wait_until(lambda: service.swept() not in ("", "0\nactivating"), "the sweep is done")
    assert service.swept() == "0\ninactive"
    assert service.alive() == []
    assert service.system.run("systemctl", "is-active", "stranger.service").strip() == "active"
    service.system.run("systemctl", "stop", "stranger.service")


def waits_for_a_config(service: Service) -> None:
    """The config keeps each daemon from starting, and none is kept: the runs go on, and the next
    daemon takes them over."""
    runs = service.runs()
    service.set_config("[guard]\nmax_dept = 3\n")
    state = f"/home/{USER}/.local/state/sfad" if service.user else "/var/lib/sfad"
    service.system.run("rm", f"{state}/config.kept")
    service.signal(signal.SIGKILL)
    wait_until(lambda: service.show("ActiveState") == "failed", "systemd gives up")
    wait_until(lambda: service.swept() == "2\nfailed", "the sweep is refused")
    service.set_config("")
    service.systemctl("reset-failed")
    service.systemctl("start", "sfad.service")
    goes_on(service, runs)


def test_a_services_life(unified: Booted) -> None:
    with serving(Service(unified)) as service:
        # the cgroups that enable controllers are still there
        assert unified.run("find", "/sys/fs/cgroup", "-name", "sfad-????????????")
        pid = killed(service)
        runs = service.runs()
        reloaded(service)
        service.systemctl("start", "sfad-sweep.service", code=1)
        assert service.swept() == "69\nfailed"  # a daemon is alive
        unified.write(
            f"{NEWER}/sfad-99.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: sfad\nVersion: 99.0\n",
        )
        service.systemctl("reload", "sfad.service")
        wait_until(lambda: "re-executing" in service.journal(), "the other version is executed")
        unified.run("rm", "-r", f"{NEWER}/sfad-99.0.dist-info")
        same_and_active(service, pid)
        goes_on(service, runs)
        stopped(service)
        service.set_config("[guard]\nmax_dept = 3\n")
        service.systemctl("start", "sfad.service", code=1)
        shows(service, "not started: ")
        assert "guard.max_dept: unknown key" in service.systemctl("status", "sfad.service", code=3)
        service.set_config("")


def test_the_life_of_a_users_service(unified: Booted) -> None:
    unified.run("systemctl", "start", f"user@{UID}.service")
    # the system's, which this daemon does not read
    unified.write("/etc/sfad/sfad.toml", '[access]\nusers = "all"\n')
    with serving(Service(unified, user=True), "[Unit]", "StartLimitBurst=2") as service:
        pid = killed(service)
        runs = service.runs()
        reloaded(service)
        unified.write("/etc/sfad/user.toml", "[guard]\nmax_depth = 6\nmax_descendants = 9\n")
        service.sfactl("reload")
        settings = {
            each["key"]: each["value"]
            for each in json.loads(service.sfactl("config", "--json"))["settings"]
        }
        assert [
            settings[key] for key in ("guard.max_depth", "guard.max_descendants", "access.users")
        ] == [7, 9, "auto"]
        service.signal(signal.SIGUSR2)
        wait_until(lambda: "re-executing" in service.journal(), "SIGUSR2 is obeyed")
        same_and_active(service, pid)
        goes_on(service, runs)
        waits_for_a_config(service)
        given_up(service)
        with serving(Service(unified)):
            shown = unified.run("sh", "-c", "sfactl list 2>&1", user=True)
            assert "your own daemon is not running" in shown
            assert "the system's daemon answers (/run/sfad/sfad.sock)" in shown
    unified.run("systemctl", "stop", f"user@{UID}.service")


@pytest.mark.skipif(not HYBRID, reason="this machine has no cgroup v1")
def test_giving_up_on_a_hybrid_machine() -> None:
    with (
        booted("hybrid") as system,
        serving(Service(system), "[Unit]", "StartLimitBurst=2") as service,
    ):
        given_up(service)
        service.configure()
        service.systemctl("reset-failed")
        service.systemctl("start", "sfad.service")
        runs = json.loads(service.sfactl("list", "--json"))["runs"]
        assert [run["status"] for run in runs] == ["lost"] * len(MARKS)


def test_a_daemon_that_hangs_and_one_that_takes_too_long_to_stop(unified: Booted) -> None:
    with serving(Service(unified), "WatchdogSec=3s", "TimeoutStopSec=500ms") as service:
        runs, hung = crowd(service), service.pid
        service.signal(signal.SIGSTOP)
        service.restarted(hung)
        goes_on(service, runs)
        service.spawn_stubborn("third")
        service.systemctl("stop", "sfad.service")  # which waits for its grace
        assert service.show("Result") == "timeout"
        wait_until(lambda: service.alive() == [], "what it left is ended")


def test_stopped_before_the_next_daemon_serves(unified: Booted) -> None:
    serve = "sfad serve --socket /run/sfad/sfad.sock --state-dir /var/lib/sfad"
    slow = f"ExecStart=/bin/sh -c 'test ! -e /run/slow || exec sleep 600; exec {serve}'"
    with serving(Service(unified), "ExecStart=", slow) as service:
        crowd(service)
        unified.write("/run/slow", "")
        before = service.pid
        service.signal(signal.SIGKILL)
        wait_until(lambda: service.next_is("activating", before=before), "the next one starts")
        service.systemctl("stop", "sfad.service")
        assert service.alive() == []
        assert service.show("Result") == "success"


def test_systemd_keeps_a_pidfd_that_tells_the_exit_code_to_the_next_daemon(unified: Booted) -> None:
    lines = [
        "Type=notify",
        "KillMode=process",
        "Restart=always",
        "RestartSec=0",
        "FileDescriptorStoreMax=4",
    ]
    unified.write(
        "/etc/systemd/system/keeper.service",
        "\n".join(["[Service]", f"ExecStart={sys.executable} {KEEPER}", *lines]),
    )
    unified.run("mkfifo", "/run/keeper.fifo")
    unified.run("systemctl", "start", "keeper.service")
    assert kept(unified) == "1"
    unified.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", "keeper.service")
    unified.run("sh", "-c", "echo > /run/keeper.fifo")
    wait_until(lambda: kept(unified) == "0", "the next one has forgotten it")
    code = 7 if tells_exits() else None
    assert unified.run("cat", "/run/keeper.told") == f"{ {'a1': code} } {{}} []"
    unified.run("systemctl", "stop", "keeper.service")


def kept(system: Booted) -> str:
    """Return how many descriptors systemd keeps."""
    return system.run(
        "systemctl", "show", "keeper.service", "--value", "--property=NFileDescriptorStore"
    ).strip()
