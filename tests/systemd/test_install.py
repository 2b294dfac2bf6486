"""`sfad install`, and what a logout does to a daemon, with a real systemd, a real logind and users
who log in."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import wait_until
from tests.users import FIRST, SECOND

from .booted import UID, USER, Booted, booted, impossible

pytestmark = pytest.mark.skipif(
    impossible() is not None, reason=f"cannot boot a systemd: {impossible()}"
)

SFAD = Path(sys.prefix, "bin/sfad")
"""The program that pip installed."""

HOME = f"/home/{USER}"
UNITS = f"{HOME}/.config/systemd/user"
WARNING = re.compile(
    r"warning: the daemon and its runs end when you log out; to prevent that: (.*)"
)
NIGHT = 5
OTHERS = (FIRST, SECOND)
"""Users of the system's daemon, without a session."""


class Machine:
    """A booted systemd without any unit of ours, and its user."""

    def __init__(self, system: Booted) -> None:
        self.system = system

    def login(self, text: str, *, code: int | None = 0) -> str:
        """Log in, type some lines, and log out; return the output."""
        return self._type(text, code, "--property=PAMName=login")

    def cron(self, text: str, *, code: int | None = 0) -> str:
        """Type some lines without a login session, in the environment that cron gives."""
        return self._type(f"unset XDG_RUNTIME_DIR\n{text}", code, "--property=KillMode=process")

    def _type(self, text: str, code: int | None, *properties: str) -> str:
        # systemd-run would expand its variables
        self.system.write(f"{HOME}/typed", f"exec 2>&1\n{text}\n")
        words = [
            "systemd-run",
            "--quiet",
            "--pipe",
            "--wait",
            f"--property=User={USER}",
            f"--property=WorkingDirectory={HOME}",
        ]
        return self.system.run(*words, *properties, "sh", f"{HOME}/typed", code=code)

    def as_root(self, advice: str) -> None:
        """Do what a message advises."""
        self.system.run(
            *advice.removeprefix("sudo ").split(), *([USER] if not advice.endswith(USER) else [])
        )

    def manager_ended(self) -> None:
        """Wait until the user's systemd has ended."""
        wait_until(
            lambda: not self.system.run("find", f"/run/user/{UID}", code=None),
            "the user's systemd has ended",
        )


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with booted("unified") as system:
        system.run("sh", "-c", "rm /etc/systemd/system/sfad* /etc/systemd/user/sfad*")
        system.write("/etc/systemd/logind.conf.d/test.conf", "[Login]\nUserStopDelaySec=0\n")
        system.run("systemctl", "restart", "systemd-logind.service")
        system.run("systemctl", "daemon-reload")
        yield Machine(system)


def test_a_night_without_lingering_and_one_with_it(machine: Machine) -> None:
    agent = "sfactl spawn -q --timeout 1h -- sh -c 'until test -e go; do sleep 0.1; done'"
    shown = machine.login(f"{agent}\n{agent}\nsfactl status\nsfactl doctor")
    (advice,) = WARNING.findall(shown)
    assert re.search(rf"^LOGOUT .*{advice}$", shown, re.MULTILINE)
    assert re.search(rf"^warn +linger: off.*\n +→ {advice}$", shown, re.MULTILINE)
    machine.manager_ended()
    ended = machine.login("sfactl run -q -- true; sfactl why a1")
    assert f"{USER} has logged out, and lingering is off; to prevent this: {advice}" in ended
    machine.manager_ended()

    machine.as_root(advice)
    wait_until(
        lambda: machine.system.run("find", f"/run/user/{UID}/systemd/private", code=None),
        "the user's systemd has started",
    )
    started = machine.cron(f"for i in $(seq {NIGHT}); do {agent}; done")
    assert not WARNING.search(started)
    machine.system.run("touch", f"{HOME}/go")
    ids = started.split()[-NIGHT:]
    machine.login(f"sfactl wait {' '.join(ids)}")
    assert re.search(
        rf"^8 runs: .*\b{NIGHT + 1} completed", machine.login("sfactl summary"), re.MULTILINE
    )
    machine.system.run("loginctl", "disable-linger", USER)
    machine.manager_ended()


def test_install_on_a_fresh_machine(machine: Machine) -> None:
    shown = machine.login(
        f"sfactl spawn -q -- sleep 600\n{SFAD} install --user\nsfactl stop "
        f"--all\n{SFAD} install --user"
    )
    assert "has runs, or does not answer. When its runs have ended: kill " in shown
    for step in (
        f"wrote: {UNITS}/sfad.service",
        "ended: the daemon",
        "ran: systemctl --user start sfad.socket sfad.service",
    ):
        assert step in shown
    assert WARNING.search(shown.rpartition("ran: ")[2])
    assert f"ExecStart={SFAD} serve" in machine.system.run("cat", f"{UNITS}/sfad.service")
    machine.manager_ended()

    install = (
        f"{SFAD} install --user --linger\nsfactl spawn -q --timeout 1h --name lasting -- sleep 600"
    )
    shown = machine.login(install)
    if "as root: " in shown:  # without polkit
        machine.as_root(re.findall("as root: (.*)", shown)[0])
        shown = machine.login(install)
    assert f"unchanged: {UNITS}/sfad.service" in shown
    assert "the daemon starts again at boot, and logging out does not end it" in shown
    assert re.search(r"lasting +running", machine.login("sfactl list"))
    refused = machine.login(f"{SFAD} install --remove </dev/null", code=2)
    assert (
        "nothing is removed, because that ends 1 live run: lasting; to do it: --remove --yes"
        in refused
    )
    assert "would end: 1 live run: lasting" in machine.login(f"{SFAD} install --remove --dry-run")
    no = machine.login(f"echo n | script -qec '{SFAD} install --remove' /dev/null", code=2)
    assert "this ends 1 live run: lasting. Go on? [y/N]" in no
    assert re.search(r"lasting +running", machine.login("sfactl list"))
    removed = machine.login(f"echo y | script -qec '{SFAD} install --remove' /dev/null").replace(
        "\r", ""
    )
    assert f"removed: {UNITS}/sfad.service" in removed
    assert machine.system.run("find", HOME, "-name", "sfad*.s*", "-path", "*systemd*") == ""
    machine.system.run("loginctl", "disable-linger", USER)
    machine.manager_ended()


ASK = """
import sys, urllib.request
link, cookies = sys.argv[1], urllib.request.HTTPCookieProcessor()
open = urllib.request.build_opener(cookies).open
print(open(link).read().decode())
"""


def test_the_console_is_a_service(machine: Machine) -> None:
    machine.system.write(f"{HOME}/ask.py", ASK)
    wrong = machine.login(f"{SFAD} install --web -- --listen nowhere:1", code=69)
    assert "--listen: 'nowhere' is not an IP address" in wrong
    assert "wrote" not in wrong
    shown = machine.login(
        f"sfactl spawn -q --timeout 1h --name shown -- sleep 600\n"
        f"{SFAD} install --web -- --listen 127.0.0.1:8599\n"
        "sfactl web --link\n"
        f"{sys.executable} ask.py $(sfactl web --link 2>/dev/null | sed 's/open //')\n"
        "systemctl --user kill -s KILL sfad-web\n"
        f"until sfactl web --link >link 2>/dev/null; do :; done\n"
        f"{sys.executable} ask.py $(sed 's/open //' link)\n"
        f"{SFAD} install --web --remove\nsfactl stop --all"
    )
    assert f"wrote: {UNITS}/sfad-web.service" in shown
    assert "open http://127.0.0.1:8599/login?token=" in shown
    assert "warning: the console ends when you log out" in shown
    assert shown.count('data-page="now"') == 2
    assert f"removed: {UNITS}/sfad-web.service" in shown
    machine.manager_ended()


def test_install_without_a_session_and_without_root(machine: Machine) -> None:
    assert "has no systemd running" in machine.cron(f"{SFAD} install --user", code=69)
    assert f"sudo {SFAD} install --system" in machine.cron(f"{SFAD} install --system", code=77)


SETUP = ("/etc/sysusers.d/sfad.conf", "/etc/tmpfiles.d/sfad.conf")


def test_the_systems_service(machine: Machine) -> None:
    system = machine.system
    assert "would write: /etc/systemd/system/sfad.service" in system.run(
        SFAD, "install", "--system", "--dry-run"
    )
    assert system.run("find", "/etc/systemd/system", *SETUP, "-name", "sfad*", code=None) == ""
    assert (
        system.run("sh", "-c", f"{SFAD} install --system --dry-run 2>/tmp/said | :; cat /tmp/said")
        == ""
    )
    shown = system.run(SFAD, "install", "--system")
    for file in ("/etc/systemd/system/sfad.service", *SETUP):
        assert f"wrote: {file}" in shown
    assert system.run("getent", "group", "sfad").startswith("sfad:")
    assert system.run("stat", "--format=%a", "/etc/sfad", "/run/sfad", "/var/lib/sfad").split() == [
        "755",
        "755",
        "700",
    ]
    (following,) = re.findall(r"^next: (.*)", shown, re.MULTILINE)
    assert "/run/sfad/sfad.sock" in system.run("sh", "-c", following)
    assert system.run(SFAD, "install", "--system").count("unchanged: ") == 5

    system.run("sh", "-c", "echo '# of an earlier version' >> /etc/systemd/system/sfad.service")
    pid = system.run("systemctl", "show", "--value", "--property=MainPID", "sfad.service")
    shown = system.run(SFAD, "install", "--system")
    (restart,) = re.findall(r"to use the new one, which ends its runs: (.*)", shown)
    system.run("sh", "-c", restart)
    assert system.run("systemctl", "show", "--value", "--property=MainPID", "sfad.service") != pid
    assert system.run("systemctl", "is-active", "sfad.service", "sfad.socket").split() == [
        "active",
        "active",
    ]

    system.run("systemctl", "stop", "sfad.service")
    # the socket has started it again
    assert "/run/sfad/sfad.sock" in system.run("sfactl", "status")
    a_user_starts_no_daemon_beside_it(machine)
    two_users_share_it(machine)
    a_user_removes_only_their_own(machine)
    removed = system.run(SFAD, "install", "--remove")
    assert "kept: /var/lib/sfad, /etc/sfad and the group sfad" in removed
    assert (
        system.run(
            "find", "/etc/systemd/system", "/run/sfad", "-name", "sfad*", "-not", "-type", "d"
        )
        == ""
    )
    assert system.run("find", *SETUP, code=None) == ""


def two_users_share_it(machine: Machine) -> None:
    """The first client starts the daemon. Neither user sees, stops or reads the run of the other;
    root does."""

    def sfactl(uid: int, *words: str, code: int | None = 0) -> str:
        become = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "env", "HOME=/")
        return machine.system.run(*become, "sfactl", *words, code=code)

    def seen(uid: int) -> set[str]:
        return {
            run["name"]
            for run in json.loads(sfactl(uid, "list", "--json", "--status", "running"))["runs"]
        }

    for uid in OTHERS:
        sfactl(
            uid,
            "spawn",
            "--quiet",
            "--name",
            f"of-{uid}",
            "--cwd",
            "/",
            "--",
            "sh",
            "-c",
            "id -u; exec sleep 600",
        )
        wait_until(
            lambda uid=uid: sfactl(uid, "logs", f"of-{uid}") == f"{uid}\n",  # type: ignore[misc]
            "it runs as its submitter",
        )
    ann, ben = OTHERS
    assert (seen(ann), seen(ben), seen(0)) == (
        {f"of-{ann}"},
        {f"of-{ben}"},
        {f"of-{ann}", f"of-{ben}"},
    )
    sfactl(ben, "stop", f"of-{ann}", code=None)
    refused = machine.system.run("sh", "-c", f"sfactl rerun of-{ann} 2>&1", code=77)
    assert (
        f"belongs to {ann}, and its command would run as you: ask {ann} to start it again"
        in refused
    )
    assert sfactl(0, "rerun", "--dry-run", f"of-{ann}").startswith(
        f"sfactl spawn --name of-{ann} --cwd / -- sh -c"
    )
    assert seen(0) == {f"of-{ann}", f"of-{ben}"}
    machine.system.run(
        "setpriv", f"--reuid={ben}", "--clear-groups", "find", "/var/lib/sfad/output", code=1
    )
    shown = sfactl(0, "events", "--type", "run_started", "--run", f"of-{ann}")
    assert f"(of-{ann} of {ann})" in shown, "the operator sees whose runs the events are of"
    assert f"(of-{ann})\n" in sfactl(ann, "events", "--type", "run_started")
    sfactl(0, "stop", "--all")
    assert machine.system.run("pgrep", "--uid", f"{ann},{ben}", code=None) == ""


def a_user_removes_only_their_own(machine: Machine) -> None:
    install = f"{SFAD} install --user; sfactl spawn -q --name own -- sleep 600"
    removed = machine.login(
        f"{install}; {SFAD} install --remove --dry-run && {SFAD} install --remove --yes"
    )
    assert "would end: 1 live run: own" in removed
    assert f"removed: {UNITS}/sfad.service" in removed
    assert "sudo" not in removed
    assert machine.system.run("systemctl", "is-active", "sfad.service") == "active\n"
    refused = machine.login(f"{SFAD} install --remove --yes", code=77)
    assert (
        f"the system's service needs root: sudo {SFAD} install --remove --yes --system" in refused
    )


def a_user_starts_no_daemon_beside_it(machine: Machine) -> None:
    machine.system.run("systemctl", "stop", "sfad.service", "sfad.socket")
    shown = machine.cron("sfactl spawn -- true", code=69)
    assert "as root: systemctl start sfad.socket" in shown
    shown = machine.cron(
        "sfactl run -q -- true; SFAD_SOCKET=/run/sfad/sfad.sock sfactl list", code=69
    )
    assert "this is its history" not in shown, "the user's own daemon has one"
    assert "as root: systemctl start sfad.socket" in machine.system.run(
        "sh", "-c", "sfactl status 2>&1", code=69
    )
    assert machine.system.run("pgrep", "--uid", str(UID), "-f", "sfad serve", code=None) == ""
    machine.system.run("systemctl", "start", "sfad.socket")
