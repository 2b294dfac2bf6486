from typing import Annotated

from sfad.features.terminals.messages import Keys  # noqa: F401 - the verb is this feature's

from ..app import app
from ..connecting.connection import connect
from ..options.shared import LiveRun, Socket, Value, flag


@app.command()
def attach(
    run: LiveRun,
    read_only: Annotated[bool, flag("Show it, and type nothing")] = False,
    detach_key: Annotated[
        str | None,
        Value("KEY").option("The key that leaves (default: SFACTL_DETACH_KEY, else C-])"),
    ] = None,
    socket: Socket = None,
) -> int:
    """Show the terminal of a run, and type into it.

    Ctrl-] leaves it, and the run goes on; typed twice, it goes to the run. So does the end of
    this client's own terminal. The exit code is that of the run if it ends meanwhile, else 0.

    Several may look at the same time. The terminal has the size of the one who attached or
    typed last; the others see the part around the cursor.

    The run is started with --terminal, or by sfactl run AGENT without a task. Text, colours and
    what moves within the screen reach this terminal; titles, links, the clipboard and questions
    to the terminal do not.
    """
    from ..terminals.viewer import (  # takes long to import
        Viewer,
        need_terminal,
    )
    from ..terminals.viewer import (
        detach_key as key_of,
    )

    need_terminal("sfactl attach")
    key = key_of(detach_key)
    with connect(socket) as client:
        return Viewer(client, run, key, read_only=read_only).stay()
