from sfad.protocol.requests.daemon import DaemonInfo, DaemonStatus

from ... import output, table
from ...connection import call
from ...exits import ExitCode, Quit
from ...options import Json, Socket
from . import app


@app.command("list")
def list_(socket: Socket = None, json: Json = False) -> int:
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
        return ExitCode.DONE
    rows = [
        (hook.name, str(hook.ended), str(hook.failed), str(hook.dropped), str(hook.running),
         str(hook.waiting), hook.failing or "-", " ".join(hook.on), " ".join(hook.command))
        for hook in found.hooks
    ]  # fmt: skip
    names = ("NAME", "ENDED", "FAILED", "DROPPED", "RUNNING", "WAITING", "FAILING", "ON", "COMMAND")
    print(table.drawn(names, [[output.plain(cell) for cell in row] for row in rows]))
    for each in found.on_ends:
        print(f"--on-end of run {each.run_id} {each.state}: {output.plain(each.command)}")
    return ExitCode.DONE
