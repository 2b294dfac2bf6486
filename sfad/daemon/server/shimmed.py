"""What a shim is answered where its program is to be no child run."""

from ...protocol.messages import OwnProgram, Reply
from ...start.surroundings import Surroundings
from ..loop.gateway_routing import GatewaySteps
from ..loop.own_servers import asked_of_server, server_call
from ..loop.shims import is_own_program


def instead_of_run(request_id: int, around: Surroundings, gateway: GatewaySteps) -> Reply | None:
    """Return what a shim in a run is to do itself; `None` if it is to be a child run. Raise
    `Invalid`, `OSError`."""
    order, caller = around.order, around.caller
    if not order.shim or caller is None:
        return None
    call = server_call(order.argv)
    if call is not None and call.act != "outside":
        return asked_of_server(request_id, order, call)
    if is_own_program(around.client, caller, order):
        return OwnProgram(id=request_id, argv=gateway.own_command(around, caller))
    return None
