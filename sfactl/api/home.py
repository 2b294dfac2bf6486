"""Brings the work of runs home: `sfactl diff` and `sfactl land`, which become the run's user where
that is another one, and so are processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from sfad.protocol.types import RunId

from ..errors import SfadError

How = Literal["merge", "squash", "patch"]


class Landed(Struct, frozen=True):
    """What has landed."""

    landed: str
    """`merge`, `squash`, `patch`, or `nothing` if all of it was there."""
    onto: str | None = None
    """The branch."""
    commit: str | None = None
    committed: str | None = None
    """The commit that was made of what the run had not committed."""
    files: list[str] = []
    notes: list[str] = []


def diff(run: RunId, socket: str | None, *, stat: bool) -> str:
    found = _command("diff", run, socket, ["--stat"] if stat else [])
    return str(found["diff"])


def land(
    run: RunId, socket: str | None, *, onto: str | None, how: How | None, message: str | None
) -> Landed:
    words = [] if how is None else [f"--{how}"]
    words += [] if onto is None else [f"--onto={onto}"]
    words += [] if message is None else [f"--message={message}"]
    return msgspec.convert(_command("land", run, socket, words), Landed)


def _command(verb: str, run: RunId, socket: str | None, words: Sequence[str]) -> dict[str, Any]:
    """Return what a verb prints as JSON. Raise `SfadError`."""
    given = [] if socket is None else [f"--socket={socket}"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sfactl", verb, "--json", *given, *words, "--", run],
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().removeprefix("sfactl: ")
        raise SfadError(said, "refused" if done.returncode == 1 else "error")
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found
