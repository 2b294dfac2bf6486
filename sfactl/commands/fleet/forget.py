from typing import Annotated

from sfad.protocol.requests.fleet import ForgetNode, Forgotten
from sfad.protocol.units import counted

from ... import output
from ...connection import call
from ...exits import ExitCode
from ...options import NODE, Json, Socket
from . import app


@app.command()
def forget(
    node: Annotated[str, NODE.argument("The node's name")],
    socket: Socket = None,
    json: Json = False,
) -> int:
    """Give up the runs of this node on another one that will not come back.

    They end as lost. What was granted to them stays charged, because what they have used is not
    known. If that node is alive, it stops those that have a lease when that ends, and goes on
    with the others.
    """
    forgotten = call(socket, ForgetNode(id=0, node=node), Forgotten).runs
    if json:
        output.print_json({"node": node, "runs": forgotten})
    else:
        print(
            f"{counted(len(forgotten), 'run')} given up"
            + (f": {' '.join(forgotten)}" if forgotten else "")
        )
    return ExitCode.DONE
