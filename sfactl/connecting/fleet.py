"""What the verbs tell of a fleet, for all of whose nodes the daemon here answers (`OverFleet`). A
place `fleet:SOCKET` stands for such a connection, and a run's name in the fleet is NODE/ID."""

from __future__ import annotations

from .. import output
from ..exits import ExitCode
from . import connection
from .connection import FLEET


def place(socket: str | None) -> str:
    """Return what `connect` takes for the fleet. `socket`: as `--socket`."""
    return FLEET + (socket or "")


def tell_unanswered() -> int:
    """Name the nodes that have not answered. Return the exit code."""
    for node, why in sorted(connection.unanswered_by.items()):
        output.note(f"sfactl: node {node}: {output.plain(why)}")
    return ExitCode.UNAVAILABLE if connection.unanswered_by else ExitCode.DONE
