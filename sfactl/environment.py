"""Defaults and the claimed chain from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from sfad.protocol.texts.units import MOST_WHOLE, parse_whole
from sfad.protocol.types import Bound, Claim

from .exits import ExitCode, Quit, UsageError, understood

FALSE = frozenset({"", "0", "false", "no", "off"})


def flag(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a switch like SFA_QUIET is on. Unset, empty, 0, false, no and off are off."""
    return environ.get(name, "").strip().lower() not in FALSE


def bound(
    option: str, given: int | None, variable: str, environ: Mapping[str, str] = os.environ
) -> Bound | None:
    """Return the value of `--max-depth`, or of its variable, with its source. `None` means
    inherited, else the default: neither is given, or the value is not positive. Raise `UsageError`
    for a variable that is not a whole number or is too large."""
    source, value = option, given
    if value is None and (text := environ.get(variable, "")).strip():
        source, value = variable, understood(variable, parse_whole, text)
    return Bound(value=value, source=source) if value is not None and value > 0 else None


def claim(environ: Mapping[str, str] = os.environ) -> Claim:
    """Return the chain that this process says it belongs to. The daemon adds it for peers outside
    any run and ignores it for others."""
    chain, own = _text("SFA_CALL_CHAIN", environ), _text("SFA_NAME", environ)
    names = [name for name in [*chain.split(","), own] if name]
    depth = environ.get("SFA_DEPTH", "")
    # An invalid depth must not count as 0: the guard fails closed.
    own_depth = (
        understood("SFA_DEPTH", parse_whole, depth, 0, MOST_WHOLE) + 1 if depth.strip() else 0
    )
    return Claim(names=names, depth=max(own_depth, len(names)))


def directory(given: str | None = None) -> bytes:
    """Return the absolute working directory of a run: `given`, else the current one. Raise
    `Quit`."""
    if given is not None and os.path.isabs(given):
        return os.fsencode(given)
    try:
        here = os.getcwdb()
    except FileNotFoundError:
        raise Quit(
            ExitCode.NOT_EXECUTABLE, "the current directory does not exist any more; use --cwd DIR"
        ) from None
    return here if given is None else os.path.normpath(os.path.join(here, os.fsencode(given)))


def variables(more: Mapping[str, str]) -> list[bytes]:
    """Return the environment of a run: this process's, and `more`."""
    # Bytes, so that a value that is not UTF-8, or a name that a shell cannot write, reaches the run
    # unchanged.
    merged = dict(os.environb)
    for key, value in more.items():
        merged[os.fsencode(key)] = os.fsencode(value)
    return [key + b"=" + value for key, value in merged.items()]


def umask() -> int:
    # umask(2) can only be read by setting it, which other threads of a program would notice
    with suppress(OSError), open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _text(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name, "")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name}: {value[:80]!a} is not UTF-8") from None
    return value
