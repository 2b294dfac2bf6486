from typing import Annotated

from sfad.features.fleet.messages import DrainNode
from sfad.protocol.requests.base import Done

from ... import output
from ...connecting.connection import call
from ...options.shared import NODE, Json, Socket, flag
from . import app


@app.command()
def drain(
    node: Annotated[str, NODE.argument("The node's name")],
    socket: Socket = None,
    json: Json = False,
    undo: Annotated[bool, flag("Place runs there again")] = False,
) -> None:
    """Place no more runs on a node.

    Runs that are there go on, and `sfactl spawn` on the node itself still starts runs there.
    """
    call(socket, DrainNode(id=0, node=node, undo=undo), Done)
    words = f"{node} {'takes runs again' if undo else 'takes no more runs'}"
    output.answer(json, {"node": node, "drained": not undo}, words)
