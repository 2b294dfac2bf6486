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
    """List the nodes of the fleet, and what each lacks that is not ready.

    A node is ready if its daemon has answered just now, through its actor, on its own part of the
    Ray cluster. Exits with 75 if a node is not.
    """
    state = call(socket, FleetStatus(id=0), FleetState)
    if not state.address:
        raise Quit(
            ExitCode.UNAVAILABLE,
            "this node is in no fleet: set fleet.address in the daemon's config (docs/fleet.md)",
        )
    output.answer(
        json,
        {"nodes": state.nodes, "trouble": state.trouble},
        table.of(_COLUMNS, state.nodes),
    )
    if not json:
        if state.trouble:
            output.note(f"sfactl: {output.plain(state.trouble)}")
        for node in state.nodes:
            if words := _words(node):
                output.note(f"sfactl: {node.name}: {output.plain(words)}")
    whole = state.trouble is None and all(_state(node) in _GOOD for node in state.nodes)
    return ExitCode.DONE if whole else ExitCode.UNAVAILABLE


_GOOD = ("ready", "drained")


def _state(node: FleetNode) -> str:
    if node.refused:
        return "refused"
    if node.missing is not None:
        return f"no {node.missing}"
    if not node.version:
        return "not known"
    return "drained" if node.drained else "ready"


def _words(node: FleetNode) -> str:
    """Return what a person should know about a node that is not ready."""
    if node.refused:
        return node.refused
    since = f"heard of last at {output.clock(node.since)}" if node.since is not None else ""
    return "; ".join(filter(None, (since, node.advice)))


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
