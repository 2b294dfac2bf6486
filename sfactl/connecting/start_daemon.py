"""Connect to the daemon, and start one for a user who has none: by systemd if it can delegate
cgroups to the daemon, else by fork.

Clients that start one at the same time take turns by a lock in the state directory, so the second
finds the daemon of the first.
"""

import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sfad.protocol.paths import SYSTEM_SOCKET, daemon_socket, make_private, state_dir, xdg
from sfad.protocol.requests.daemon import DaemonInfo, DaemonStatus

from .. import environment, output
from ..exits import ExitCode, Quit
from . import connection
from .connection import ABSENT, Client, DaemonError, Unreachable
from .inside import inside_run

READY_TIMEOUT = 15.0
"""Seconds until the daemon must listen. To recover a thousand runs takes about 2."""
LOG = "sfad.log"
PASSED_ON = ("SFAD_SOCKET", "SFAD_STATE_DIR", "SFAD_CONFIG")


def connect_or_start(flag: str | None) -> Client:
    """Connect to the daemon. Start one if none is running, except inside a run, or for a socket
    that `--socket` names: the user means the daemon that listens there. One that died is then
    waited for, because it may be started again. Raise `Unreachable`, `Quit`."""
    try:
        return connection.connect(flag)
    except Unreachable as error:
        if error.kind not in ABSENT:
            raise
        inside = inside_run()
        if inside is not None:
            error.message += f"; no daemon is started inside a run ({inside})"
            raise
        forbidden = not environment.flag("SFAD_AUTOSTART", {"SFAD_AUTOSTART": "1", **os.environ})
        if flag is None and not forbidden:
            return start()
        if error.kind == "refused":
            return connection.connect_again(flag)
        if flag is None:
            error.message += "; SFAD_AUTOSTART=0 forbids starting one"
        raise


def start() -> Client:
    """Start a daemon and connect to it, or to one that another client has started meanwhile. Raise
    `Quit`."""
    for name in PASSED_ON:
        if os.environ.get(name):  # the daemon has another working directory
            os.environ[name] = os.path.abspath(os.environ[name])
    _leave_to_system()
    place = daemon_socket(os.environ, os.getuid())
    state = _prepared(state_dir(os.environ, os.getuid()))
    with open(state / "autostart.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return connection.connect(None)
        except Unreachable as error:
            # a new daemon would not help, and this client might reach another user's
            if error.kind not in ABSENT:
                raise
        how = by_systemd() or by_itself(state, place)
        try:
            started = connection.connect(None)
        except Unreachable as error:
            raise Quit(
                ExitCode.UNREACHABLE,
                f"a daemon was started but does not answer: {error}\n{_tail(state / LOG, 0)}",
            ) from error
    output.note(
        "sfactl: no daemon was running; "
        f"started one {how} (pid {started.welcome.pid}, {started.path})"
    )
    status = started.call(DaemonInfo(id=0), DaemonStatus)
    if status.rejected_config is not None:
        output.note(
            "sfactl: warning: the config has an error, "
            f"and an earlier one is in force: {status.rejected_config}"
        )
    if status.linger_command is not None:
        output.note(
            "sfactl: warning: the daemon and its runs end when you log out; "
            f"to prevent that: {status.linger_command}"
        )
    return started


def _leave_to_system() -> None:
    """Raise `Quit` if this machine has a daemon for all users, and this user has not chosen
    another."""
    installed = connection.system_unit()
    for_others = SYSTEM_SOCKET.exists() and not os.access(SYSTEM_SOCKET, os.W_OK)
    if (
        installed is None
        or for_others
        or any(os.environ.get(name) for name in PASSED_ON)
        or _own_unit()
    ):
        return
    raise Quit(
        ExitCode.UNREACHABLE,
        f"the daemon of all users is not running, though {installed} is installed; as root: "
        "systemctl start sfad.socket. For a daemon of your own: sfad install --user",
    )


def _own_unit() -> bool:
    with suppress(ValueError):
        return (
            xdg(os.environ, "XDG_CONFIG_HOME", ".config") / "systemd/user/sfad.service"
        ).exists()
    return False


def _prepared(state: Path) -> Path:
    try:
        make_private(state)
        # The daemon accepts a directory that is open to others only while it is empty: change its
        # mode before the lock is made.
        if state.stat().st_mode & 0o077 and not any(state.iterdir()):
            state.chmod(0o700)
    except OSError as error:
        raise Quit(
            ExitCode.UNREACHABLE,
            (
                f"no daemon can be started: {state}: {error.strerror}; "
                "to choose another directory: SFAD_STATE_DIR"
            ),
        ) from error
    return state


def by_systemd() -> str | None:
    """Let the user's systemd start the daemon: by its installed unit, else by a transient one with
    delegated cgroups. Return how it was started; `None` if systemd is not running or cannot do
    it."""
    if (environ := _users_systemd()) is None:
        return None
    # An installed unit listens at its own place, so it does not help if the environment names
    # another.
    elsewhere = any(name in os.environ for name in PASSED_ON)
    for unit in ("sfad.socket", "sfad.service") if not elsewhere else ():
        if _quietly(environ, "systemctl", "--user", "start", unit):
            return f"by systemctl --user start {unit}"
    return "in its own systemd unit" if _quietly(environ, *transient(environ)) else None


def _users_systemd() -> dict[str, str] | None:
    """Return the environment in which programs find the user's systemd; `None` if it does not run.
    Cron and su set no XDG_RUNTIME_DIR."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    there = os.path.exists(os.path.join(runtime, "systemd", "private"))
    return {**os.environ, "XDG_RUNTIME_DIR": runtime} if there else None


def transient(environ: Mapping[str, str]) -> list[str]:
    """Return the command that starts the daemon in a delegated unit, so that it can contain runs by
    cgroup. `KillMode=process`: when the unit is stopped, the daemon stops each tree; when the
    daemon dies, its runs stay alive, and the daemon that systemd starts next adopts them. After
    five deaths in ten seconds systemd gives up, and the daemon that the next `spawn` starts adopts
    them. After exit codes 2 and 69 systemd does not restart the daemon, because that would not help
    (config, ledger, another daemon)."""
    settings = [f"--setenv={name}={environ[name]}" for name in PASSED_ON if name in environ]
    properties = [
        "Delegate=yes",
        "KillMode=process",
        "Type=notify",
        "NotifyAccess=main",
        "Restart=on-failure",
    ]
    properties += ["RestartPreventExitStatus=2 69", "FileDescriptorStoreMax=4096"]
    # makes the unit startable again while runs are alive in it; systemd splits it into words, and
    # the path may have a space
    python = sys.executable.replace("\\", "\\\\").replace('"', '\\"')
    properties.append(f'ExecStopPost="{python}" -P -m sfad sweep --stop-post')
    unit = f"--unit=sfad-on-demand-{os.getpid()}-{time.time_ns()}"
    flags = [
        "--user",
        "--quiet",
        "--collect",
        unit,
        *settings,
        *(f"--property={p}" for p in properties),
    ]
    return ["systemd-run", *flags, "--", *daemon_command()]


def daemon_command() -> list[str]:
    """Return the command of the daemon of this installation, with the same interpreter."""
    # -P: do not import sfad from the working directory
    return [sys.executable, "-P", "-m", "sfad", "serve"]


def _quietly(environ: Mapping[str, str], *command: str) -> bool:
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=READY_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def by_itself(state: Path, place: Path) -> str:
    """Start the daemon by fork: in its own session, with a log file. Return how, once it listens or
    another daemon does. Raise `Quit` with the end of the log if it fails."""
    log = state / LOG
    said_before = log.stat().st_size if log.exists() else 0
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:  # a child of which this process has nothing to reap
        try:
            _execute(writable, log)
        finally:
            os._exit(0)
    os.close(writable)
    os.waitid(os.P_PID, child, os.WEXITED)
    if not _told_ready(readable) and not _answers(place):
        raise Quit(
            ExitCode.UNREACHABLE, f"the daemon could not be started:\n{_tail(log, said_before)}"
        )
    return f"that logs to {log}"


def _execute(ready: int, log: Path) -> None:
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as written:
        subprocess.Popen(
            [*daemon_command(), "--ready-fd", str(ready)],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            pass_fds=[ready],
            start_new_session=True,
        )


def _answers(place: Path) -> bool:
    try:
        Client(place).close()
    except Unreachable:
        return False
    except DaemonError:  # it listens, and has no room for another connection
        return True
    return True


def _told_ready(descriptor: int) -> bool:
    """Wait for the byte that the daemon sends when it listens. Return False if the pipe ends
    before: the daemon has died."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    try:
        return bool(poll.poll(READY_TIMEOUT * 1000)) and bool(os.read(descriptor, 1))
    finally:
        os.close(descriptor)


def _tail(log: Path, start: int) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(start)
            text = file.read().decode(errors="replace").strip()
    except OSError as error:
        return f"  (its log {log} cannot be read: {error.strerror})"
    return "\n".join(f"  {line}" for line in text.splitlines()[-15:]) or f"  ({log} is empty)"
