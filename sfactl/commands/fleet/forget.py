from typing import Annotated

from sfad.features.fleet.messages import ForgetNode, Forgotten
from sfad.protocol.texts.units import counted

from ... import output
from ...connecting.connection import call
from ...options.shared import NODE, Json, Socket
from . import app


@app.command()
def forget(
    node: Annotated[str, NODE.argument("The node's name")],
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Give up the runs of this node on another one that will not come back.

    They end as lost. What was granted to them stays charged, because what they have used is not
    known. If that node is alive, it stops those that have a lease when that ends, and goes on
    with the others.
    """
    forgotten = call(socket, ForgetNode(id=0, node=node), Forgotten).runs
    which = f": {' '.join(forgotten)}" if forgotten else ""
    words = f"{counted(len(forgotten), 'run')} given up{which}"
    output.answer(json, {"node": node, "runs": forgotten}, words)
