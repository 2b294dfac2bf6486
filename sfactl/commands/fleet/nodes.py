from sfad.protocol.requests.fleet import FleetNode, FleetState, FleetStatus

from ... import output, table
from ...connection import call
from ...exits import ExitCode, Quit
from ...options import Json, Socket
from . import app


@app.command()
def nodes(socket: Socket = None, json: Json = False) -> int:
    """List the nodes of the fleet, with their versions.

    A node that does not answer has no version. Exits with 75 if there is one.
    """
    state = call(socket, FleetStatus(id=0), FleetState)
    if not state.connected or state.trouble:
        raise Quit(
            ExitCode.UNAVAILABLE,
            state.trouble or "this node is in no fleet, or not connected: sfactl fleet status",
        )
    if json:
        output.print_json({"nodes": state.nodes})
    else:
        rows = [
            [
                node.name,
                _state(node),
                node.version or "-",
                node.python or "-",
                node.ray or "-",
                node.address or "-",
                ", ".join(
                    f"{amount:g} {name}"
                    for name, amount in node.resources.items()
                    if name in ("CPU", "GPU")
                )
                or "-",
            ]
            for node in state.nodes
        ]
        print(
            table.drawn(
                ["NODE", "STATE", "SFAD", "PYTHON", "RAY", "ADDRESS", "RESOURCES"], rows, ()
            )
        )
        for node in state.nodes:
            if node.refused:
                output.note(f"sfactl: {node.name}: {node.refused}")
    return ExitCode.DONE if all(node.version for node in state.nodes) else ExitCode.UNAVAILABLE


def _state(node: FleetNode) -> str:
    if node.refused:
        return "refused"
    if not node.version:
        return "no answer" if node.alive else "dead"
    return "drained" if node.drained else "ready"
