"""What becomes of a request whose connection was lost. Imported when that happens."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from sfad.protocol.encoding import tag
from sfad.protocol.requests.base import Request
from sfad.protocol.requests.daemon import Prune
from sfad.protocol.requests.following import Wait
from sfad.protocol.requests.starting import Spawn
from sfad.protocol.requests.steering import Pause, Stop

Q = TypeVar("Q", bound=Request)


def again(request: Q, elapsed: float) -> Q:
    """Return `request` as it is sent a second time, `elapsed` seconds after the first."""
    if isinstance(request, Wait) and request.timeout is not None:
        return replace(request, timeout=max(request.timeout - elapsed, 0.0))
    return request


def time_for(request: Request, elapsed: float) -> float:
    """Return the seconds that a request leaves for a daemon that restarts, `elapsed` seconds after
    it was sent first."""
    return (
        max(request.timeout - elapsed, 0.0)
        if isinstance(request, Wait) and request.timeout is not None
        else float("inf")
    )


def unanswered(request: Request) -> str:
    """Return the message for a request that is not sent again."""
    what = tag(type(request))
    if request.repeats and not isinstance(request, _CHANGES):
        return f"it closes the connection each time it receives this {what}"
    return (
        "it closed the connection before it replied. "
        f"The {what} may have been carried out, and is not sent again; {_look(request)}"
    )


def advice(request: Request) -> str:
    """Return what to tell the user if the daemon does not come back."""
    if isinstance(request, Stop):
        return "the runs may still be alive: stop them again when the daemon is back"
    if isinstance(request, _CHANGES):
        return f"the {tag(type(request))} may have been carried out; {_look(request)}"
    return "runs may continue without it"


_CHANGES = (Spawn, Stop, Pause)
"""Requests that change something and may still be repeated."""


def _look(request: Request) -> str:
    run = getattr(request, "run", None) or "RUN"
    return (
        "check "
        f"with: sfactl {'list' if isinstance(request, Spawn | Stop | Prune) else f'info {run}'}"
    )
