from typing import Annotated

from sfad.protocol.requests.base import Done
from sfad.protocol.requests.fleet import DrainNode

from ... import output
from ...connection import call
from ...exits import ExitCode
from ...options import NODE, Json, Socket, flag
from . import app


@app.command()
def drain(
    node: Annotated[str, NODE.argument("The node's name")],
    socket: Socket = None,
    json: Json = False,
    undo: Annotated[bool, flag("Place runs there again")] = False,
) -> int:
    """Place no more runs on a node.

    Runs that are there go on, and `sfactl spawn` on the node itself still starts runs there.
    """
    call(socket, DrainNode(id=0, node=node, undo=undo), Done)
    if json:
        output.print_json({"node": node, "drained": not undo})
    else:
        print(f"{node} {'takes runs again' if undo else 'takes no more runs'}")
    return ExitCode.DONE
