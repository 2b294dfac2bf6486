import sys
from importlib.util import find_spec

from msgspec import Struct

from sfad.protocol.requests.listing import WatchRuns

from ..app import OverFleet, app
from ..connecting.connection import FLEET, unanswered_by
from ..exits import ExtraMissing, UsageError
from ..options.selection import labels
from ..options.shared import Labels, MaybeRun, Names, Socket, User
from ..options.spreading import spread
from ..showing.pages import QUEUED


class TopOptions(Struct, frozen=True):
    root: MaybeRun = None
    socket: Socket = None
    name: Names = []
    user: User = None
    label: Labels = []


@app.command(cls=OverFleet)
@spread(TopOptions)
def top(options: TopOptions) -> int:
    """Show runs full-screen, as they change.

    A tree of live runs and those that ended recently. The cursor begins at a run in trouble,
    and the lines below the tree say what it has. Keys stop, pause and resume runs, change
    limits, approve and deny, show output and reasons; ? lists them. With RUN, only its tree;
    with --fleet, the runs of all nodes. The first 20 queued runs are shown, and the others
    counted. Needs the extra top, as in: pip install '.[top]' in the checkout.

    Exit codes: 0 left with q; 2 no terminal, or the extra is not installed; 69 the daemon
    cannot be reached.
    """
    if find_spec("textual") is None:
        raise ExtraMissing("top", "top")
    if options.root is not None and options.socket is not None and options.socket.startswith(FLEET):
        raise UsageError(
            "--fleet shows the runs of all nodes: leave out RUN, and type / to filter them"
        )
    wanted = WatchRuns(
        id=0,
        root=options.root,
        name=list(options.name) or None,
        user=options.user,
        labels=labels(options.label),
        queued=QUEUED,
    )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "top needs a terminal; 'sfactl tree' prints the runs once, "
            "'sfactl events -f' what happens, 'sfactl web' serves pages"
        )
    # Imported here because Textual takes half a second, and is an extra.
    from ..top import app as screen

    code = screen.run(options.socket, wanted)
    unanswered_by.clear()  # the screen has shown that
    return code
