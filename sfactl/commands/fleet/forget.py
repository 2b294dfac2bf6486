"""Give up the runs of this node on another one that will not come back.

They end as lost. What was granted to them stays charged, because what they have used is not known. If that node is alive, it stops
those that have a lease when that ends, and goes on with the others.
"""

from __future__ import annotations

from sfad.protocol.requests.fleet import ForgetNode, Forgotten
from sfad.protocol.units import counted

from ... import output
from ...connection import call
from ...exits import ExitCode
from ...options import COMMON, Argument, Parameter

PARAMETERS: tuple[Parameter, ...] = (*COMMON, Argument("node", "NODE", "The node's name"))


def main(*, node: str, socket: str | None = None, json: bool = False) -> int:
    forgotten = call(socket, ForgetNode(id=0, node=node), Forgotten).runs
    if json:
        output.print_json({"node": node, "runs": forgotten})
    else:
        print(f"{counted(len(forgotten), 'run')} given up" + (f": {' '.join(forgotten)}" if forgotten else ""))
    return ExitCode.DONE
