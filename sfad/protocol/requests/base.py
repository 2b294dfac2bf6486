"""What every request and every reply has; the handshake, and the replies that many requests have."""

from __future__ import annotations

import sys

from ..framing import frame
from ..structs import ClassVar, Struct, pack
from ..types import ErrorCode, Lowered, RunId, RunInfo

ALWAYS = sys.maxsize
"""`Request.repeats` of requests that wait for runs: the daemon may be restarted several times meanwhile."""
MAX_DESCRIPTORS = 3
"""Descriptors in one message: stdin, stdout, stderr."""


class Request(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"):
    """Base of every message that a client sends."""

    id: int
    repeats: ClassVar[int] = 0
    """How often a client sends the request again if the connection is lost before the reply. 0 for what adds up, what writes, and
    what may meet another state the second time (`Resume` would thaw what was paused again meanwhile)."""


class Hello(Request, tag="hello"):
    """The first message of a connection. `client` names the program, only for the daemon's log at level debug."""

    versions: list[int]
    client: str = ""


class Reply(Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of every message that the daemon sends. `id` is that of the request, or 0 if the request could not be read."""

    id: int


class Welcome(Reply, tag="welcome"):
    """The answer to `Hello`. `run`: the run that the peer is in, according to the kernel."""

    version: int
    daemon: str
    pid: int
    state_dir: str
    run: RunId | None = None


class Done(Reply, tag="done"):
    """The request was carried out."""


class Error(Reply, tag="error"):
    """The request failed. `message` says what failed, with the value; why; and what to do."""

    code: ErrorCode
    message: str


class RunReply(Reply, tag="run"):
    run: RunInfo
    lowered: list[Lowered] = []
    """Limits of a session that has just been started that are lower than what was asked for."""


def pack_message(message: Request | Reply) -> bytes:
    return frame(pack(message))
