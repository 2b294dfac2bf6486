"""What the daemon says to systemd, by the protocol of sd_notify(3), if systemd has started it.

The files in `systemd/` say what systemd does with the unit.
"""

import os
import re
import socket
import subprocess
import time
from collections import deque
from contextlib import suppress
from functools import cache
from pathlib import Path

import trio
from msgspec import Struct

from ..protocol.texts.units import parse_whole
from . import probe
from .probe import UCRED

SOCKET_UNIT = "sfad.socket"
"""The name under which systemd passes the socket that it listens on for the daemon."""

MAX_STATUS = 500
"""Characters of the text in `systemctl status`."""


def manages() -> bool:
    """Return whether systemd started this process as a service. Then it starts the next daemon as
    well, or sweeps."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def another_follows() -> bool:
    """Return, in a process of `ExecStopPost=`, whether the service has failed.

    Then systemd starts it again, or the unit of `OnFailure=`. It does neither for a service that
    was stopped, or that ended by a signal like SIGTERM."""
    return os.environ.get("SERVICE_RESULT", "success") != "success"


def listens(listener: socket.socket) -> bool:
    """Return whether another process called listen(2) on a socket: then that process still listens
    when this one ends."""
    pid, _uid, _gid = UCRED.unpack(
        listener.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size)
    )
    return bool(pid != os.getpid())


def notify(state: str) -> None:
    """Send `state` (`READY=1`, `STOPPING=1`) to the service manager, if there is one. Raises
    `OSError` if that fails."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), _address(address))


def _address(path: str) -> str:
    return "\0" + path[1:] if path.startswith("@") else path


def reloading() -> str:
    """Return the state that lasts until `READY=1`. `Type=notify-reload` (systemd 253) waits for one
    later than its SIGHUP."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"


def status(text: str) -> str:
    """Return the state that shows a text in `systemctl status`."""
    # a line end would begin another assignment
    return f"STATUS={' '.join(text.split())[:MAX_STATUS]}"


def watchdog_interval() -> float | None:
    """Return the seconds between two `WATCHDOG=1`, half of what systemd allows; `None` if it does
    not watch this process."""
    limit = os.environ.get("WATCHDOG_USEC", "")
    ours = os.environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
    try:
        return parse_whole(limit, 1, 2**63 - 1) / 2e6 if ours else None
    except ValueError:
        return None


async def feed_watchdog() -> None:
    """Tell systemd that trio's loop turns (`WatchdogSec=`), until cancelled."""
    interval = watchdog_interval()
    while interval is not None:
        with suppress(OSError):  # the next one counts as well
            notify("WATCHDOG=1")
        await trio.sleep(interval)


class FdStore:
    """Descriptors that systemd keeps for the unit's next daemon if this one dies
    (`FileDescriptorStoreMax=`).

    Best effort: this does not wait for systemd, which takes 0.14 ms a message and queues a few
    hundred. When the unit is stopped, systemd closes all of them."""

    def __init__(self) -> None:
        """Connect to systemd. Nothing is kept if systemd did not start this process, or does not
        listen."""
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        if address:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            sock.setblocking(False)
            try:
                sock.connect(_address(address))
                self._socket = sock
            except OSError:  # `notify` reports that systemd does not listen there
                sock.close()
        self.there = self._socket is not None
        self._unwanted: deque[str] = deque()

    def keep(self, name: str, fd: int) -> bool:
        """Have systemd keep a copy of `fd`. Return whether it was asked; it does not answer.

        `FDPOLL=0` (systemd 246) keeps a descriptor that hangs up, as the pidfd of an ended process
        does. `name` is at most 255 ASCII characters without ':' and control characters."""
        # in this order: the name may be one that systemd has yet to forget
        return self.flush() and self._say(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", [fd])

    def forget(self, name: str) -> None:
        """Have systemd close all descriptors of that name: now, or before the next message."""
        if self._socket is not None:
            self._unwanted.append(name)
            self.flush()

    def flush(self) -> bool:
        """Send what could not be sent yet. Return whether nothing is left to forget."""
        while self._unwanted:
            if not self._say(f"FDSTOREREMOVE=1\nFDNAME={self._unwanted[0]}", []):
                return False
            self._unwanted.popleft()
        return True

    def _say(self, state: str, descriptors: list[int]) -> bool:
        if self._socket is None:
            return False
        try:
            socket.send_fds(self._socket, [state.encode()], descriptors)
        except OSError:
            return False
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    @staticmethod
    def taken() -> dict[str, int]:
        """Return the descriptors that systemd hands to this process, by name: those that were kept,
        and listening sockets.

        They are the caller's to close; of two with one name it gets the first. To be called once,
        before this process opens a descriptor that could be mistaken for one of them."""
        pid, count, names = (
            os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
        )
        found: dict[str, int] = {}
        if pid != str(os.getpid()):
            return found
        try:
            last = FIRST_PASSED + parse_whole(count, 0)
        except ValueError:
            return found
        for fd, name in zip(range(FIRST_PASSED, last), names.split(":"), strict=False):
            try:
                os.set_inheritable(fd, False)
            except OSError:  # the variable promises more than was passed
                break
            if name in found:
                os.close(fd)
            else:
                found[name] = fd
        return found


FIRST_PASSED = 3
"""SD_LISTEN_FDS_START."""


# ---- Whether logging out ends this daemon, and whether a logout is what ends it now
#
# After a user's last session, systemd ends the user's own systemd with all its services, unless
# lingering is enabled. It ends the processes of a login session with that session only if logind
# has `KillUserProcesses=yes`. The daemon's cgroup shows which of the two the daemon is in. See
# loginctl(1) and logind.conf(5).


ASK_TIMEOUT = 2.0
"""Seconds that systemd may take to answer. The daemon serves no client meanwhile. Some 10 ms are
usual."""
_MANAGER = re.compile(r"/user-(\d+)\.slice/user@\1\.service/")
_SESSION = re.compile(r"/user-(\d+)\.slice/session-([^/\n]+)\.scope")


class Home(Struct, frozen=True):
    """The user, and the login session, that the daemon is in."""

    uid: int
    session: str | None
    """The login session; `None` in the user's own systemd."""


def linger_command() -> str | None:
    """Return the command that lets this daemon outlive its user's last session; `None` if logging
    out does not end it."""
    where = _home()
    if where is None:
        return None
    # lingering does not help: it keeps services, and not what is in a session
    if where.session is not None:
        return "sfad install --user --linger" if _kills_sessions() else None
    return None if probe.lingering(where.uid) else probe.linger_command(where.uid)


def cause() -> str | None:
    """Return why this process is told to end, if the user's logout or the machine's shutdown is the
    cause; else `None`."""
    where = _home()
    if where is None or not _closing(where):
        return None
    if _asked("systemctl", "is-system-running") == "stopping":
        return "the machine is shutting down"
    name = probe.user_name(where.uid)
    if where.session is not None:
        return f"the login session of {name} in which it was started has ended"
    if probe.lingering(where.uid):
        return None
    return (
        f"{name} has logged out, and lingering is off; "
        f"to prevent this: {probe.linger_command(where.uid)}"
    )


def _home() -> Home | None:
    """Return where this process is; `None` if it is in no user's session, as in a service of the
    system."""
    text = Path("/proc/self/cgroup").read_text(errors="replace")
    if found := _MANAGER.search(text):
        return Home(int(found[1]), None)
    if found := _SESSION.search(text):
        return Home(int(found[1]), found[2])
    return None


def _closing(where: Home) -> bool:
    """Return whether logind has begun to end the session, or has seen the user's last session end.

    sd_session_get_state(3) and sd_uid_get_state(3) read the same files."""
    file = f"users/{where.uid}" if where.session is None else f"sessions/{where.session}"
    try:
        return (
            "STATE=closing" in Path("/run/systemd", file).read_text(errors="replace").splitlines()
        )
    except OSError:
        return False


@cache
def _kills_sessions() -> bool:
    """Return whether logind ends the processes that a session leaves. It reads its configuration
    only when it starts."""
    words = ("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1")
    return _asked(*words, "org.freedesktop.login1.Manager", "KillUserProcesses") == "b true"


def _asked(*command: str) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
