"""What a bug report says of this machine and of the daemon, in Markdown, with secrets hidden."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sfad import __version__
from sfad.protocol.encoding import to_json
from sfad.protocol.requests.daemon import DaemonStatus, Setting
from sfad.protocol.texts.redaction import redacted, redacted_object

from .. import output

LIBRARIES = ("trio", "msgspec", "psutil", "typer", "httpx2", "h11", "genai-prices", "ray")
LOG_LINES = 40
LOG_BYTES = 64 << 10
"""Bytes of the end of the log in which its newest lines are looked for."""


def report(status: DaemonStatus | None, settings: Sequence[Setting], findings: str) -> str:
    """Return the report. `findings`: what `sfactl doctor` prints."""
    text = "\n".join(_lines(status, settings, findings))
    # the name of its user is nobody's business
    home = os.environ.get("HOME", "").rstrip("/")
    return output.harmless(text.replace(home, "~") if home else text)


def _lines(
    status: DaemonStatus | None, settings: Sequence[Setting], findings: str
) -> Iterator[str]:
    yield "## What happened, and what you expected"
    yield "\n(write here; `sfactl why RUN` and `sfactl events RUN` tell what became of a run)\n"
    yield "## Machine\n"
    libc = " ".join(platform.libc_ver()).strip() or "no glibc"
    yield f"- sfad {__version__}, Python {platform.python_version()}, {libc}"
    yield f"- Linux {platform.release()} {platform.machine()}, {_distribution()}"
    yield f"- {', '.join(_installed())}"
    if status is not None:
        yield f"- daemon: {_daemon(status)}"
    yield f"\n## sfactl doctor\n\n```\n{redacted(findings)}\n```"
    if changed := [each for each in settings if each.source != "built-in"]:
        yield "\n## Settings that are not built-in\n\n```"
        yield from (f"{each.key} = {_value(each)}  # {each.source}" for each in changed)
        yield "```"
    if status is not None and (log := _log(status)):
        yield f"\n## The end of the daemon's log\n\n```\n{log}\n```"


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown distribution")
    except OSError:
        return "unknown distribution"


def _installed() -> Iterable[str]:
    for name in LIBRARIES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _daemon(status: DaemonStatus) -> str:
    return (
        f"version {status.version}, up {status.uptime_s:.0f} s, {status.containment} "
        f"({status.containment_detail}), {status.live} live and {status.queued} queued runs, "
        f"{status.memory_bytes >> 20} MiB, ledger {status.ledger_bytes >> 20} MiB"
    )


def _value(setting: Setting) -> str:
    name = setting.key.rpartition(".")[2]
    return to_json(redacted_object({name: setting.value})[name]).decode()


def _log(status: DaemonStatus) -> str:
    """Return the newest lines of the log, which the daemon has redacted; "" if it is no file that
    this user may read."""
    place = status.log or ""
    if not place.startswith("/"):
        return ""
    try:
        with Path(place).open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_BYTES))
            newest = log.read(LOG_BYTES).decode(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return ""
    return redacted("\n".join(newest))
