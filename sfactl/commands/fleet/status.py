from sfad.features.fleet.messages import FleetState, FleetStatus
from sfad.protocol.texts.units import counted, format_elapsed

from ... import output
from ...connecting.connection import call
from ...exits import ExitCode
from ...options.shared import Json, Socket
from . import app


@app.command()
def status(socket: Socket = None, json: Json = False) -> int:
    """Show this node's place in the fleet.

    With the runs that it has granted to other nodes and was granted by them, and nodes with its
    runs that do not answer. Exits with 75 if the node is not connected, or lacks Ray.
    """
    state = call(socket, FleetStatus(id=0), FleetState)
    if json:
        output.print_json({
            "node": state.node, "address": state.address, "connected": state.connected,
            "trouble": state.trouble, "nodes": [node.name for node in state.nodes],
            "granted": state.granted, "taken": state.taken, "unreachable": state.unreachable,
            "keeper": state.keeper, "keeper_trouble": state.keeper_trouble,
        })  # fmt: skip
    elif not state.address:
        print("in no fleet: set fleet.address in the daemon's config (docs/fleet.md)")
    else:
        print(
            f"node {state.node} of the cluster at {state.address}: "
            f"{'connected' if state.connected else 'not connected'}"
        )
        if not state.raylet:
            print("  its part of Ray is gone: nothing is placed here until it is back")
        if state.trouble:
            print(f"  {output.plain(state.trouble)}")
        if state.connected or state.keeper:
            print(f"  budgets are kept by {state.keeper or 'a node that is not known yet'}")
        if state.keeper_trouble:
            print(f"  {output.plain(state.keeper_trouble)}")
        for words, nodes in (("granted to", state.granted), ("granted by", state.taken)):
            for node, count in sorted(nodes.items()):
                print(f"  {counted(count, 'live run')} {words} {node}")
        for node, away in sorted(state.unreachable.items()):
            print(f"  {node} has not answered for {format_elapsed(away)}")
    whole = state.connected and state.raylet and not state.trouble
    return ExitCode.DONE if whole or not state.address else ExitCode.UNAVAILABLE
