"""`sfad install`: make the daemon of this installation a service of systemd.

The units are those of `systemd/`, with this installation's programs in place of `/usr/bin/env sfad`
and `/usr/bin/env sfactl`.
Each step is printed when it is done. A dry run prints the same steps and takes none of them.
"""

import json
import os
import re
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from .. import exits
from ..host import probe
from ..protocol.paths import SYSTEM_SOCKET, SYSTEM_STATE, daemon_socket, state_dir, xdg

STARTED = ("sfad.socket", "sfad.service")
"""The units that are enabled and started, in this order: systemd does not start the socket of a
service that is active."""
PLACEHOLDER = "/usr/bin/env sfad"
CLIENT_PLACEHOLDER = "/usr/bin/env sfactl"
NEWER_KEYS = re.compile(
    r"^(RestartMode|RestartSteps|RestartMaxDelaySec|DelegateSubgroup)=.*\n", re.MULTILINE
)
KEYS_KNOWN = 254
"""The first version of systemd that knows `NEWER_KEYS`. Earlier versions do without, and complain
of them."""
SETUP = {
    "sfad.sysusers": Path("/etc/sysusers.d/sfad.conf"),
    "sfad.tmpfiles": Path("/etc/tmpfiles.d/sfad.conf"),
}
"""Where a service of the system has its group and its directories."""
GROUP = "sfad"
ON_DEMAND = re.compile(r"sfad-on-demand-[\d-]+\.service")
"""The unit of a daemon that a client started (`sfactl.connecting.start_daemon`)."""
COMMAND_TIMEOUT = 120.0
"""Seconds for one command of systemd. A stop may take the 90 s of TimeoutStopSec=."""
MANAGER_TIMEOUT = 10.0
"""Seconds that a user's systemd may take to start when lingering is enabled."""
NAMED = 5
"""Trees that a removal names, the largest first."""
_PAST = {"write": "wrote", "run": "ran", "end": "ended", "remove": "removed"}
_SPECIAL = set("\"'\\$;\n\t ")
"""Characters of a path that mean something else in ExecStart=."""


class InstallError(Exception):
    """The service cannot be installed or removed; the message says what to do."""

    def __init__(self, message: str, code: int = exits.UNAVAILABLE) -> None:
        super().__init__(message)
        self.code = code


def program() -> list[str]:
    """Return the command that starts this installation: its script `sfad`, else its interpreter."""
    script = Path(sys.argv[0]).absolute()
    return (
        [str(script)]
        if script.name == "sfad" and os.access(script, os.X_OK)
        else [sys.executable, "-P", "-m", "sfad"]
    )


def client() -> list[str]:
    """Return the command of this installation's `sfactl`."""
    script = Path(program()[0]).with_name("sfactl")
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-P", "-m", "sfactl"]


def templates(*, user: bool) -> dict[str, str]:
    """Return the units by name. In a wheel they are in `sfad/units/`, in a checkout in
    `systemd/`."""
    top = files() / "user" if user else files()
    return {
        path.name: path.read_text()
        for path in sorted(top.iterdir())
        if path.suffix in (".service", ".socket")
    }


def files() -> Path:
    """Return the directory with the units and what else is installed."""
    packaged = Path(__file__).parents[1] / "units"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "systemd"


def render(template: str, commands: Mapping[str, Sequence[str]], version: int = 0) -> str:
    """Return a unit with commands in place of their placeholders, for a version of systemd. Raises
    `InstallError` for a word that a unit cannot contain."""
    for word in chain.from_iterable(commands.values()):
        if _SPECIAL & set(word):
            raise InstallError(
                (
                    f"{word!r} has a character that a systemd unit cannot contain; "
                    "use another path, or install sfad under one"
                ),
                exits.USAGE,
            )
    text = template
    for placeholder, words in commands.items():
        text = text.replace(placeholder, " ".join(words).replace("%", "%%"))
    return text if version >= KEYS_KNOWN else NEWER_KEYS.sub("", text)


class Steps:
    """Takes steps, and prints each; in a dry run prints only."""

    def __init__(self, *, dry_run: bool) -> None:
        self.dry_run = dry_run
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SFA_", "SFAD_"))
        }
        """Without the variables that may name another daemon than the service's."""

    def run(self, *command: str) -> None:
        if not self.dry_run and (done := self._done(command)).returncode:
            raise InstallError(
                f"'{shlex.join(command)}' exited with {done.returncode}: "
                f"{' '.join(done.stderr.split())}"
            )
        self.say("run", shlex.join(command))

    def output(self, *command: str) -> str:
        return self._done(command).stdout.strip()

    def _done(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InstallError(
                f"'{shlex.join(command)}' did not end within {COMMAND_TIMEOUT:g} s"
            ) from None

    def tell(self, verb: str, what: str) -> None:
        """Announce a step."""
        print(f"{'would' if self.dry_run else 'will'} {verb}: {what}", flush=True)

    def say(self, verb: str, what: str) -> None:
        """Report a step that was taken."""
        print(f"would {verb}: {what}" if self.dry_run else f"{_PAST[verb]}: {what}", flush=True)


class Installer:
    """The service of one scope: this user's, or the system's."""

    started: tuple[str, ...] = STARTED
    """The units that are enabled."""
    ends = "the daemon and its runs end"
    starts = "the daemon starts"

    def __init__(self, *, user: bool, dry_run: bool = False) -> None:
        self._user = user
        self._steps = Steps(dry_run=dry_run)
        self._systemctl = ["systemctl", "--user"] if user else ["systemctl"]

    def install(self, *, linger: bool = False) -> None:
        """Write, enable and start the units. Raises `InstallError`, `OSError`."""
        self._check()
        if linger and not probe.lingering(os.getuid()):
            self._linger("enable-linger")
        self._check_manager(awaited=linger)
        self._warn_of_paths()
        changed = [
            self._write(self._directory / name, text) for name, text in self._rendered().items()
        ]
        self._set_up()
        self._steps.run(*self._systemctl, "daemon-reload")
        self._steps.run(*self._systemctl, "enable", *self.started)
        self._start(changed=any(changed))
        self._tell_lasting(linger)
        self._tell_next()

    def _tell_next(self) -> None:
        if self._user and SYSTEM_SOCKET.exists():
            print(
                f"note: this machine has a daemon for all users, too ({SYSTEM_SOCKET}). Yours "
                "answers from now on: its runs, history and budgets are not those of the other"
            )
        if not self._user and find_spec("textual") is None:
            pip = shlex.join([sys.executable, "-m", "pip", "install", ".[top]"])
            print(
                f"note: for sfactl top, install sfad with its extra top, as in the checkout: {pip}"
            )
        print(f"next: {shlex.join([*client(), 'status'])}")

    def confirm_removal(self, *, yes: bool) -> None:
        """Say which live runs a removal ends, and ask at a terminal, unless `yes`. Raises
        `InstallError` if it must not be done."""
        self._check()
        self._check_manager(awaited=False)
        if self._steps.output(*self._systemctl, "is-active", STARTED[-1]) in (
            "",
            "inactive",
            "failed",
        ):
            return  # a client that connected would start the daemon
        ends = self._live_runs()
        if ends is None:
            return
        if self._steps.dry_run or yes:
            self._steps.tell("end", ends)
        elif not sys.stdin.isatty():
            raise InstallError(
                f"nothing is removed, because that ends {ends}; to do it: --remove --yes",
                exits.USAGE,
            )
        elif input(f"this ends {ends}. Go on? [y/N] ").strip().lower() not in ("y", "yes"):
            raise InstallError("nothing was removed", exits.USAGE)

    def _live_runs(self) -> str | None:
        """Return how many live runs the service has, and the names of its largest trees; `None` if
        it has none."""
        socket = daemon_socket(self._steps.environ, os.getuid()) if self._user else SYSTEM_SOCKET
        said = self._steps.output(
            sys.executable,
            "-P",
            "-m",
            "sfactl",
            "list",
            "--json",
            "--limit-rows",
            "0",
            "--socket",
            str(socket),
        )
        if not said:
            return f"runs that are not known, because the daemon does not answer at {socket}"
        found = json.loads(said)
        runs, queued = found["runs"], found.get("queued", 0)
        if not runs:
            return None
        roots = sorted(
            (run for run in runs if run["parent_id"] is None), key=lambda run: -run["descendants"]
        )
        names = [run["name"] if self._user else f"{run['name']} ({run['user']})" for run in roots]
        rest = [f"{len(names) - NAMED} more trees"] if len(names) > NAMED else []
        count = len(runs) + queued
        return f"{count} live run{'s' * (count > 1)}: {', '.join([*names[:NAMED], *rest])}"

    def remove(self, *, linger: bool = False) -> None:
        """Stop the daemon with its runs, and remove the units, after `confirm_removal`. Raises
        `InstallError`, `OSError`."""
        units = [self._directory / name for name in self._names()]
        there = [path for path in (*units, *self._beside()) if path.exists()]
        if there:
            if started := [unit for unit in self.started if self._directory / unit in there]:
                self._steps.run(*self._systemctl, "disable", "--now", *started)
            for path in there:
                if not self._steps.dry_run:
                    path.unlink()
                self._steps.say("remove", str(path))
            self._steps.run(*self._systemctl, "daemon-reload")
            if self._beside():
                print(f"kept: {SYSTEM_STATE}, /etc/sfad and the group {GROUP}")
        else:
            print(f"nothing is installed in {self._directory}")
        if linger:
            self._linger("disable-linger")
        elif self._user and probe.lingering(os.getuid()):
            print(
                "lingering stays enabled; "
                f"to disable it: {probe.linger_command(os.getuid()).replace('enable', 'disable')}"
            )

    def installed(self) -> bool:
        with suppress(InstallError):
            return (self._directory / self.started[-1]).exists()
        return False

    def _beside(self) -> Collection[Path]:
        """Return what is installed beside the units."""
        return () if self._user else SETUP.values()

    def _names(self) -> Iterable[str]:
        """Return the names of the units."""
        return templates(user=self._user)

    @property
    def _directory(self) -> Path:
        if not self._user:
            return Path("/etc/systemd/system")
        try:
            return xdg(self._steps.environ, "XDG_CONFIG_HOME", ".config") / "systemd/user"
        except ValueError as error:
            raise InstallError(str(error)) from None

    def _check(self) -> None:
        if not probe.systemd_runs() or not shutil.which("systemctl"):
            raise InstallError(
                "systemd does not run here (no /run/systemd/system); start 'sfad serve' from this "
                "machine's init, or let the first 'sfactl spawn' start a daemon"
            )
        if not self._user and os.geteuid() != 0:
            # root may have a service of their own, too
            words = [*sys.argv[1:], *(["--system"] if "--system" not in sys.argv else [])]
            raise InstallError(
                f"the system's service needs root: sudo {shlex.join([*program(), *words])}",
                exits.NOT_PERMITTED,
            )
        for name in ("SFAD_SOCKET", "SFAD_STATE_DIR", "SFAD_CONFIG"):
            if name in os.environ:
                print(
                    f"note: {name} is set in this shell; "
                    "the service does not use it, but sfactl does"
                )

    def _check_manager(self, *, awaited: bool) -> None:
        """Find the user's systemd, whose runtime directory cron and su do not name. `awaited`: it
        may be about to start."""
        if not self._user:
            return
        own = f"/run/user/{os.getuid()}"
        end = time.monotonic() + (MANAGER_TIMEOUT if awaited and not self._steps.dry_run else 0)
        while True:
            for runtime in (os.environ.get("XDG_RUNTIME_DIR") or own, own):
                if os.path.exists(f"{runtime}/systemd/private"):
                    self._steps.environ["XDG_RUNTIME_DIR"] = runtime
                    return
            if time.monotonic() >= end:
                break
            time.sleep(0.05)
        if not (awaited and self._steps.dry_run):
            raise InstallError(
                f"{probe.user_name(os.getuid())} has no systemd running "
                f"({own}/systemd/private does not exist), as after su or in cron; "
                "log in by ssh or at a console, or give --linger, which starts it"
            )

    def _rendered(self) -> dict[str, str]:
        commands = {PLACEHOLDER: program(), CLIENT_PLACEHOLDER: client()}
        version = self._version()
        return {
            name: render(text, commands, version)
            for name, text in templates(user=self._user).items()
        }

    def _version(self) -> int:
        """Return the version of systemd; 0 if it is not known."""
        found = self._steps.output("systemctl", "--version").split()
        return int(found[1]) if len(found) > 1 and found[1].isdecimal() else 0

    def _set_up(self) -> None:
        """Make the group and the directories of a service of the system."""
        if self._user:
            return
        for (name, path), command in zip(
            SETUP.items(), (["systemd-sysusers"], ["systemd-tmpfiles", "--create"]), strict=True
        ):
            self._write(path, (files() / name).read_text())
            if shutil.which(command[0]):
                self._steps.run(*command, str(path))
            else:
                print(
                    f"note: there is no {command[0]} here; "
                    f"the next boot, or you, must do what {path} says"
                )

    def _warn_of_paths(self) -> None:
        """Warn of a program that others can change, or that not all users can run."""
        if self._user:
            return
        needed = (Path(program()[0]), Path(sys.executable), Path(__file__).parent)
        paths = dict.fromkeys(
            path for start in needed for path in (start.resolve(), *start.resolve().parents)
        )
        modes = {path: path.stat() for path in paths}
        if foreign := next((path for path, found in modes.items() if found.st_uid != 0), None):
            owner = probe.user_name(modes[foreign].st_uid)
            print(
                f"warning: {foreign} belongs to {owner}, who can thereby become root; "
                "install sfad where only root can write"
            )
        if closed := next(
            (path for path, found in modes.items() if not found.st_mode & stat.S_IXOTH), None
        ):
            print(
                f"warning: other users cannot run sfactl, because {closed} is closed to them; "
                f"to open it: chmod o+rx {closed}"
            )

    def _write(self, path: Path, text: str) -> bool:
        if path.exists() and path.read_text() == text:
            print(f"unchanged: {path}")
            return False
        if not self._steps.dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._steps.say("write", str(path))
        if self._steps.dry_run:
            print("".join(f"    {line}\n" for line in text.splitlines()), end="")
        return True

    def _start(self, *, changed: bool) -> None:
        if self._steps.output(*self._systemctl, "is-active", STARTED[-1]) == "active":
            # the daemon becomes this version, and keeps its runs
            self._steps.run(*self._systemctl, "reload", STARTED[-1])
            if changed:
                # not 'restart': systemd does not start a socket while its service is active
                stop, start = (
                    shlex.join([*self._systemctl, verb, *STARTED]) for verb in ("stop", "start")
                )
                print(
                    "the daemon still runs by its old unit; "
                    f"to use the new one, which ends its runs: {stop} && {start}"
                )
            return
        state = state_dir(self._steps.environ, os.getuid()) if self._user else SYSTEM_STATE
        if (pid := probe.holder(state)) is not None:
            self._end_idle(pid)
        self._steps.run(*self._systemctl, "start", *STARTED)

    def _end_idle(self, pid: int) -> None:
        """End the daemon that a client or a shell started, if it has no runs. Raises `InstallError`
        if it has."""
        said = self._steps.output(sys.executable, "-P", "-m", "sfactl", "status", "--json")
        status = json.loads(said) if said else {}
        if status.get("pid") != pid or status["live"] or status["queued"]:
            start = shlex.join([*self._systemctl, "start", *STARTED])
            raise InstallError(
                f"the service is not started: a daemon that was started without it (pid {pid}) "
                f"has runs, or does not answer. When its runs have ended: kill {pid}; {start}"
            )
        if not self._steps.dry_run:
            pidfd = os.pidfd_open(pid)
            unit = ON_DEMAND.search(Path(f"/proc/{pid}/cgroup").read_text())
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            select.select([pidfd], [], [], COMMAND_TIMEOUT)
            os.close(pidfd)
            # wait for its ExecStopPost=, which sweeps and holds the state directory meanwhile
            if unit is not None:
                self._steps.output(*self._systemctl, "stop", unit[0])
        self._steps.say(
            "end", f"the daemon that was started without the service (pid {pid}); it had no runs"
        )

    def _tell_lasting(self, linger: bool) -> None:
        if not self._user:
            print(f"{self.starts} again at boot")
        elif linger or probe.lingering(os.getuid()):
            print(f"{self.starts} again at boot, and logging out does not end it")
        else:
            command = probe.linger_command(os.getuid())
            print(f"warning: {self.ends} when you log out; to prevent that: {command}")

    def _linger(self, verb: str) -> None:
        try:
            self._steps.run("loginctl", verb)
        except InstallError as error:
            name = probe.user_name(os.getuid())
            raise InstallError(
                f"{error}; as root: loginctl {verb} {name}", exits.NOT_PERMITTED
            ) from None
