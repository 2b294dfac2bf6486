"""A real systemd in namespaces of its own, with sfad installed from this checkout. Needs root and
systemd-nspawn."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import sfad
from tests.harness import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "systemd"
USER = "sfaduser"
UID = 54321
USERS_CONFIG = "/etc/config-of-user"
OTHER_ROOT = "SFAD_TEST_ROOT"
"""See `boot.sh`."""
_POWER_OFF = signal.SIGRTMIN + 4
_CANNOT = 77
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOUNTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
NEWER = "/opt/newer"
"""A directory in the module path of each `sfad` there."""


def impossible() -> str | None:
    """Return why no systemd can be booted here; `None` if it can."""
    if os.geteuid() != 0:
        return "not root"
    for program in ("systemd-nspawn", "unshare", "nsenter", "dbus-daemon", "setpriv"):
        if not shutil.which(program):
            return (
                f"no {program} here (Debian: systemd-container, libpam-systemd, "
                "dbus, util-linux, procps)"
            )
    return None if os.path.exists("/lib/systemd/systemd") else "no systemd here"


class Booted:
    """The booted systemd. Commands run inside, with an environment of their own."""

    def __init__(self, init: int) -> None:
        self._init = init

    def run(self, *words: str | Path, code: int | None = 0, user: bool = False) -> str:
        """Run a command and return its output. `user`: as that user. `code`: its exit code, `None`
        for any."""
        enter = [
            "nsenter",
            f"--target={self._init}",
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            "-C",
            "--root",
            "--wd",
        ]
        environment = ["env", "-i", f"PATH={_PATH}", "TERM=dumb", "LC_ALL=C.UTF-8"]
        if user:
            become = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
            home = [
                f"HOME=/home/{USER}",
                f"XDG_RUNTIME_DIR=/run/user/{UID}",
                f"XDG_CONFIG_HOME={USERS_CONFIG}",
            ]
            command = [*enter, *become, *environment, *home, *map(str, words)]
        else:
            command = [*enter, *environment, *map(str, words)]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert code in (None, done.returncode), (
            f"{shlex.join(map(str, words))}: {done.stdout}{done.stderr}"
        )
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file there, and make its directory."""
        self.run(
            "sh",
            "-c",
            'mkdir -p "${1%/*}" && printf %s "$2" > "$1" && chmod 755 "$1"',
            "sh",
            path,
            text,
        )


class Service:
    """`sfad.service`, of the system or of a user."""

    def __init__(self, system: Booted, *, user: bool = False) -> None:
        self.system = system
        self.user = user
        self.units = "/etc/systemd/user" if user else "/etc/systemd/system"
        self.config = f"{USERS_CONFIG}/sfad/sfad.toml" if user else "/etc/sfad/sfad.toml"

    def systemctl(self, *words: str, code: int | None = 0) -> str:
        return self.system.run(
            "systemctl", *(["--user"] if self.user else []), *words, code=code, user=self.user
        )

    def sfactl(self, *words: str, code: int | None = 0) -> str:
        return self.system.run("sfactl", *words, code=code, user=self.user)

    def show(self, *keys: str, unit: str = "sfad.service") -> str:
        """Return properties of the unit, a line each."""
        shown = self.systemctl("show", unit, *(f"--property={key}" for key in keys))
        values = dict(line.partition("=")[::2] for line in shown.splitlines())
        return "\n".join(values[key] for key in keys)

    def swept(self) -> str:
        """Return exit code and state of the sweep's own unit; empty if it never ran."""
        begun, *rest = self.show(
            "ExecMainStartTimestamp", "ExecMainStatus", "ActiveState", unit="sfad-sweep.service"
        ).split("\n")
        return "\n".join(rest) if begun else ""

    def journal(self) -> str:
        unit = "_SYSTEMD_USER_UNIT" if self.user else "_SYSTEMD_UNIT"
        return self.system.run("journalctl", "--output=cat", "--no-pager", f"{unit}=sfad.service")

    @property
    def pid(self) -> int:
        """Return the daemon's pid there."""
        return int(self.show("MainPID"))

    def signal(self, number: int) -> None:
        """Send a signal to the daemon only."""
        self.system.run("kill", f"-{int(number)}", str(self.pid))

    def configure(self, *lines: str) -> None:
        """Add lines to the section [Service] of the unit."""
        self.system.write(
            f"{self.units}/sfad.service.d/test.conf", "\n".join(["[Service]", *lines, ""])
        )
        self.systemctl("daemon-reload")

    def set_config(self, text: str) -> None:
        """Write the daemon's config."""
        self.system.write(self.config, text)

    def runs(self) -> dict[str, int]:
        """Return the pid of each running run."""
        runs: list[dict[str, Any]] = json.loads(
            self.sfactl("list", "--json", "--status", "running")
        )["runs"]
        return {run["id"]: run["pid"] for run in runs}

    def spawn(self, mark: str) -> str:
        """Start a run of three processes, one in a session of its own. It counts in a file of that
        name."""
        count = (
            f"setsid sleep {_SECONDS} & sleep {_SECONDS} & while :; do echo >> {self._file(mark)}; "
            "sleep 0.05; done"
        )
        return self.sfactl("spawn", "--quiet", "--timeout", "1h", "--", "sh", "-c", count).strip()

    def spawn_stubborn(self, mark: str) -> None:
        """Start a run that ignores SIGTERM. It counts as well."""
        count = f"trap '' TERM; while :; do echo >> {self._file(mark)}; sleep 0.05; done"
        self.sfactl("spawn", "--quiet", "--timeout", "1h", "--", "sh", "-c", count)
        wait_until(
            lambda: self.system.run("find", self._file(mark), code=None),
            "it no longer minds SIGTERM",
        )

    def ticks(self, mark: str) -> int:
        """Return how far the run has counted."""
        return int(self.system.run("stat", "--format=%s", self._file(mark)))

    def _file(self, mark: str) -> str:
        return f"/tmp/tick-{mark}-{'user' if self.user else 'system'}"

    def alive(self) -> list[str]:
        """Return the processes of runs, known by their command, and those in the unit's cgroup."""
        known = self.system.run(
            "pgrep", "-a", "-f", rf"^sleep {_SECONDS}|/tmp/tick", code=None
        ).splitlines()
        files = self.system.run(
            "find", "/sys/fs/cgroup", "-path", "*/sfad.service*/cgroup.procs"
        ).split()
        inside = self.system.run("cat", *files, "/dev/null", code=None).split()
        return known + [pid for pid in inside if pid != "0"]

    def next_is(self, state: str, *, before: int) -> bool:
        """Return whether there is another daemon, and its unit is in that state."""
        pid, now = self.show("MainPID", "ActiveState").split("\n")
        return int(pid) not in (0, before) and now == state

    def restarted(self, before: int) -> None:
        """Wait for another daemon."""
        wait_until(lambda: self.next_is("active", before=before), "the daemon is started again")


_SECONDS = 98765
"""The seconds that runs sleep, by which their processes are known."""


@contextmanager
def booted(view: str) -> Iterator[Booted]:
    """Boot a systemd until the end of the block. `view`: its cgroups, `unified`, or `hybrid` like
    this machine's."""
    name = f"sfadtest{os.getpid()}{view[:1]}"
    with tempfile.TemporaryDirectory(prefix="sfad-boot-") as directory:
        work = Path(directory, "w")
        work.mkdir()
        _lay_out(Path(directory, "w.files"))
        arguments = [
            str(Path(__file__).with_name("boot.sh")),
            str(work),
            name,
            str(int(view == "unified")),
            *_paths(),
        ]
        with Path(directory, "console").open("w+") as console:
            boot = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "--", "sh", *arguments],
                stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT,
                env={"PATH": _PATH, OTHER_ROOT: os.environ.get(OTHER_ROOT, "/")},
            )  # fmt: skip
            try:
                yield Booted(_init_of(boot, console.name))
            finally:
                _shut_down(boot, name)


def _paths() -> list[str]:
    wanted = {ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(sfad.__file__).parents[1]}
    outside = [path for path in wanted if not path.is_relative_to("/usr")]
    return sorted(
        str(path)
        for path in outside
        if not any(path != other and path.is_relative_to(other) for other in outside)
    )


def _lay_out(files: Path) -> None:
    for directory, kind in ((UNITS, "system"), (UNITS / "user", "user")):
        target = files / "etc/systemd" / kind
        target.mkdir(parents=True)
        for unit in directory.glob("*.service"):
            shutil.copy(unit, target)
    programs = files / "usr/local/bin"
    programs.mkdir(parents=True)
    for name in ("sfad", "sfactl"):
        (programs / name).write_text(
            f"#!{sys.executable}\nfrom {name}.__main__ import main\nmain()\n"
        )
        (programs / name).chmod(0o755)
    (files / NEWER[1:]).mkdir(parents=True)
    for kind, more in (("system", ""), ("user", f" XDG_CONFIG_HOME={USERS_CONFIG}")):
        path = files / f"etc/systemd/{kind}.conf.d/test.conf"
        path.parent.mkdir()
        path.write_text(f"[Manager]\nDefaultEnvironment=PYTHONPATH={NEWER}{more}\n")


def _init_of(boot: subprocess.Popen[bytes], console: str) -> int:
    """Return the pid of the systemd, once it accepts commands."""

    def said() -> str:
        return Path(console).read_text(errors="replace").strip()

    def ready() -> int | None:
        if boot.poll() is not None:
            if boot.returncode == _CANNOT:
                pytest.skip(f"no systemd can be booted here: {said()[-300:]}")
            raise AssertionError(f"systemd has not booted: {said()[-1000:]}")
        with suppress(psutil.Error):
            for child in psutil.Process(boot.pid).children():
                if os.path.exists(f"/proc/{child.pid}/root/run/systemd/private"):
                    return child.pid
        return None

    init: int = wait_until(ready, "systemd has booted")
    system = Booted(init)
    system.run("systemctl", "is-system-running", "--wait", code=None)
    system.run(
        "useradd",
        "--create-home",
        "--skel",
        NEWER,
        "--uid",
        str(UID),
        "--user-group",
        "--home-dir",
        f"/home/{USER}",
        USER,
    )
    return init


def _shut_down(boot: subprocess.Popen[bytes], name: str) -> None:
    with suppress(psutil.Error):
        for child in psutil.Process(boot.pid).children():
            child.send_signal(_POWER_OFF)
    try:
        boot.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        boot.kill()  # which ends its pid namespace
        boot.wait()
    for mount in _MOUNTS:
        for directory, _, _ in os.walk(f"{mount}/{name}", topdown=False):
            wait_until(lambda directory=directory: _removed(directory), f"{directory} is empty")  # type: ignore[misc]
    with suppress(OSError):
        os.rmdir(f"/run/systemd/nspawn/propagate/{name}")


def _removed(directory: str) -> bool:
    with suppress(OSError):
        os.rmdir(directory)
    return not os.path.exists(directory)
