"""Place no more runs on a node.

Runs that are there go on, and `sfactl spawn` on the node itself still starts runs there.
"""

from __future__ import annotations

from sfad.protocol.requests.base import Done
from sfad.protocol.requests.fleet import DrainNode

from ... import output
from ...connection import call
from ...exits import ExitCode
from ...options import COMMON, Argument, Option, Parameter

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    Argument("node", "NODE", "The node's name"),
    Option(("--undo",), "undo", "Place runs there again"),
)


def main(*, node: str, undo: bool = False, socket: str | None = None, json: bool = False) -> int:
    call(socket, DrainNode(id=0, node=node, undo=undo), Done)
    if json:
        output.print_json({"node": node, "drained": not undo})
    else:
        print(f"{node} {'takes runs again' if undo else 'takes no more runs'}")
    return ExitCode.DONE
