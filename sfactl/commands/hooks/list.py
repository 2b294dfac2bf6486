from collections.abc import Callable

from sfad.protocol.requests.daemon import DaemonInfo, DaemonStatus, HookState

from ... import output
from ...connecting.connection import call
from ...exits import ExitCode, Quit
from ...options.shared import Json, Socket
from ...showing import table
from . import app


@app.command("list")
def list_(socket: Socket = None, json: Json = False) -> None:
    """List the hooks of the config, how often each was started and failed, and commands of
    --on-end that are not done.
    """
    found = call(socket, DaemonInfo(id=0), DaemonStatus)
    # the daemon tells this figure, like the hooks, to those who may do everything
    if found.admitted is None and not found.on_ends:
        raise Quit(
            ExitCode.NOT_PERMITTED,
            "only the operator sees the hooks; a run, or another user, does not",
        )
    if json:
        output.print_json({"hooks": found.hooks, "on_ends": found.on_ends})
        return
    print(table.of(_COLUMNS, found.hooks))
    for each in found.on_ends:
        print(f"--on-end of run {each.run_id} {each.state}: {output.plain(each.command)}")


_COLUMNS: dict[str, Callable[[HookState], str]] = {
    "NAME": lambda hook: hook.name,
    "ENDED": lambda hook: str(hook.ended),
    "FAILED": lambda hook: str(hook.failed),
    "DROPPED": lambda hook: str(hook.dropped),
    "RUNNING": lambda hook: str(hook.running),
    "WAITING": lambda hook: str(hook.waiting),
    "FAILING": lambda hook: hook.failing or "-",
    "ON": lambda hook: " ".join(hook.on),
    "COMMAND": lambda hook: " ".join(hook.command),
}
