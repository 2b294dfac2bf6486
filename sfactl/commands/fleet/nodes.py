from collections.abc import Callable

from sfad.features.fleet.messages import FleetNode, FleetState, FleetStatus

from ... import output
from ...connecting.connection import call
from ...exits import ExitCode, Quit
from ...options.shared import Json, Socket
from ...showing import table
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
    output.answer(json, {"nodes": state.nodes}, table.of(_COLUMNS, state.nodes))
    for node in state.nodes:
        if node.refused and not json:
            output.note(f"sfactl: {node.name}: {node.refused}")
    return ExitCode.DONE if all(node.version for node in state.nodes) else ExitCode.UNAVAILABLE


def _state(node: FleetNode) -> str:
    if node.refused:
        return "refused"
    if not node.version:
        return "no answer" if node.alive else "dead"
    return "drained" if node.drained else "ready"


def _resources(node: FleetNode) -> str:
    found = (f"{node.resources[name]:g} {name}" for name in node.resources if name in _SHOWN)
    return ", ".join(found) or "-"


_SHOWN = ("CPU", "GPU")
_COLUMNS: dict[str, Callable[[FleetNode], str]] = {
    "NODE": lambda node: node.name,
    "STATE": _state,
    "SFAD": lambda node: node.version or "-",
    "PYTHON": lambda node: node.python or "-",
    "RAY": lambda node: node.ray or "-",
    "ADDRESS": lambda node: node.address or "-",
    "RESOURCES": _resources,
}
