"""Whether logging out ends this daemon, and whether a logout is what ends it now.

After a user's last session, systemd ends the user's own systemd with all its services, unless lingering is enabled. It ends the
processes of a login session with that session only if logind has `KillUserProcesses=yes`. The daemon's cgroup shows which of the
two the daemon is in. See loginctl(1) and logind.conf(5).
"""

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

from . import probe

ASK_TIMEOUT = 2.0
"""Seconds that systemd may take to answer. The daemon serves no client meanwhile. Some 10 ms are usual."""
_MANAGER = re.compile(r"/user-(\d+)\.slice/user@\1\.service/")
_SESSION = re.compile(r"/user-(\d+)\.slice/session-([^/\n]+)\.scope")


class Home(NamedTuple):
    """The user, and the login session, that the daemon is in."""

    uid: int
    session: str | None
    """The login session; `None` in the user's own systemd."""


def linger_command() -> str | None:
    """Return the command that lets this daemon outlive its user's last session; `None` if logging out does not end it."""
    where = _home()
    if where is None:
        return None
    if where.session is not None:  # lingering does not help: it keeps services, and not what is in a session
        return "sfad install --user --linger" if _kills_sessions() else None
    return None if probe.lingering(where.uid) else probe.linger_command(where.uid)


def cause() -> str | None:
    """Return why this process is told to end, if the user's logout or the machine's shutdown is the cause; else `None`."""
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
    return f"{name} has logged out, and lingering is off; to prevent this: {probe.linger_command(where.uid)}"


def _home() -> Home | None:
    """Return where this process is; `None` if it is in no user's session, as in a service of the system."""
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
        return "STATE=closing" in Path("/run/systemd", file).read_text(errors="replace").splitlines()
    except OSError:
        return False


@cache
def _kills_sessions() -> bool:
    """Return whether logind ends the processes that a session leaves. It reads its configuration only when it starts."""
    words = ("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1")
    return _asked(*words, "org.freedesktop.login1.Manager", "KillUserProcesses") == "b true"


def _asked(*command: str) -> str:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
