"""What every request and every reply has; the handshake, and the replies that many requests
have."""

from __future__ import annotations

import sys
from typing import ClassVar

from msgspec import Struct

from ..framing import frame, pack, reader
from ..types import ErrorCode, Lowered, RunId, RunInfo

ALWAYS = sys.maxsize
"""`Request.repeats` of requests that wait for runs: the daemon may be restarted several times
meanwhile."""
MAX_DESCRIPTORS = 3
"""Descriptors in one message: stdin, stdout, stderr."""


class Request(
    Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"
):
    """Base of every message that a client sends."""

    id: int
    repeats: ClassVar[int] = 0
    """How often a client sends the request again if the connection is lost before the reply. 0 for
    what adds up, what writes, and what may meet another state the second time (`Resume` would thaw
    what was paused again meanwhile)."""
    answered_there: ClassVar[bool] = False
    """The node answers where the run executes."""


class Hello(Request, tag="hello"):
    """The first message of a connection: which versions the client speaks. The daemon chooses the
    highest that it speaks too. Answered by `Welcome`."""

    versions: list[int]
    client: str = ""
    """The program's name, for the daemon's log at level `debug`."""


class Reply(Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of every message that the daemon sends. `id` is that of the request, or 0 if the request
    could not be read."""

    id: int
    unanswered: dict[str, str] = {}
    """If several nodes answer, those that have not, and why; in a message of several, those that do
    not answer now."""


class Welcome(Reply, tag="welcome"):
    version: int
    """The version of this connection."""
    daemon: str
    """The daemon's release."""
    pid: int
    state_dir: str
    run: RunId | None = None
    """The run that the client is in, according to the kernel."""


class Done(Reply, tag="done"):
    """The request was carried out."""


class Error(Reply, tag="error"):
    """The request failed. `message` says what failed, with the value; why; and what to do."""

    code: ErrorCode
    """One of the codes (docs/protocol.md#errors)."""
    message: str
    """What failed, with the value; why; and what to do."""


class RunReply(Reply, tag="run"):
    run: RunInfo
    lowered: list[Lowered] = []
    """Limits of a session that has just been started that are lower than what was asked for."""


def pack_message(message: Request | Reply) -> bytes:
    return frame(pack(message))


unpack_reply = reader(Reply, strange=lambda number: Reply(id=number))
"""Return the reply in a frame's body, of the replies that are imported; a `Reply` for one of a
newer daemon. Raise `BadMessage`."""
