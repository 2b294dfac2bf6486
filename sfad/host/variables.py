"""The part of an environment that a command needs to find its user's files and desktop, without keys."""

from collections.abc import Iterable

KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR",
    "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS",
)  # fmt: skip
"""And `LC_*`."""

MOST = 4096
"""Bytes of a variable with its name."""

_KEPT = (b"LC_", *(f"{name}=".encode() for name in KEPT))


def kept_variables(env: Iterable[bytes]) -> list[bytes]:
    """Return these variables of an environment. Of two with one name the first counts, as for getenv(3)."""
    found: dict[bytes, bytes] = {}
    for item in env:
        if item.startswith(_KEPT) and len(item) <= MOST:
            found.setdefault(item.partition(b"=")[0], item)
    return list(found.values())
