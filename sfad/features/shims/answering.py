"""What a shim is answered where its program is to be no child run."""

import os

from ...agents import OWN_SERVERS
from ...agents.own_server import ServerCall
from ...core.state.naming import executes, program_name
from ...daemon.loop.leading import Leading
from ...daemon.loop.own_servers import server_call
from ...processes import kernel
from ...protocol.messages import OwnProgram, OwnServerAsked, Reply, Spawn
from ...runs.live import Live
from ...start.prepared import Surroundings


class Answering:
    def __init__(self, leading: Leading) -> None:
        self._leading = leading

    def instead_of_run(self, request_id: int, around: Surroundings) -> Reply | None:
        """Return what a shim in a run is to do itself; `None` if it is to be a child run, or none
        asks. Raise `Invalid`, `OSError`."""
        order, caller = around.order, around.caller
        if not order.shim or caller is None:
            return None
        call = server_call(order.argv)
        if call is not None and call.act != "outside":
            return _asked_of_server(request_id, order, call)
        if _is_own_program(around.client, caller, order):
            return OwnProgram(id=request_id, argv=self._leading.own_command(around, caller))
        return None


def _asked_of_server(id_: int, request: Spawn, call: ServerCall) -> OwnServerAsked:
    """Return what a shim is to do in place of the server."""
    words = [os.fsencode(word) for word in call.words]
    background = OWN_SERVERS[program_name([os.fsdecode(request.argv[0])])].background
    if call.act != "start" or background is None:
        return OwnServerAsked(id=id_, act=call.act, what=call.what, argv=words)
    argv = [request.argv[0], *words]
    return OwnServerAsked(id=id_, act=call.act, what=call.what, argv=argv, says=background.says)


def _is_own_program(shim: int, run: Live, request: Spawn) -> bool:
    """Return whether it is the run's own command that has led to a shim, as `timeout 60 claude`
    does in the run's PATH: no process between the two is the program."""
    program = program_name([os.fsdecode(word) for word in request.argv[:1]])
    if run.main is None or request.name is not None:
        return False
    if program_name(run.run.asked.shown.argv) != program:
        return False
    for process in kernel.ancestors(shim):
        if process.pid != shim and executes(kernel.command(process.pid), program):
            return False
        if process.pid == run.main.pid:
            return True
    return False
