"""Show runs full-screen, as they change.

A tree of live runs and those that ended recently. The cursor begins at a run in trouble, and the lines below the tree say what it
has. Keys stop, pause and resume runs, change limits, approve and deny, show output and reasons; ? lists them. With RUN, only its
tree. Needs the extra top, as in: pip install '.[top]' in the checkout.

--web prints an address on loopback instead. It can be opened once, in a browser of the same user, and works until Ctrl-C.

Exit codes: 0 left with q; 2 no terminal, or the extra is not installed; 69 the daemon cannot be reached.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from sfad.protocol.requests.listing import WatchRuns
from sfad.protocol.structs import replace

from ..connection import connect
from ..exits import ExitCode, UsageError
from ..options import LABEL, NAME, RUN, SOCKET, USER, Option, Parameter, whole
from ..selection import labels

PARAMETERS: tuple[Parameter, ...] = (
    SOCKET,
    replace(RUN, target="root", metavar="RUN", required=False),
    NAME,
    USER,
    LABEL,
    Option(("--web",), "in_browser", "Show it in a browser: print an address on loopback that can be opened once"),
    Option(("--port",), "port", "With --web: the port (default: a free one)", "N"),
)

PR_SET_PDEATHSIG = 1
"""prctl(2)."""


def main(
    *,
    root: str | None = None,
    name: Sequence[str] = (),
    user: str | None = None,
    label: Sequence[str] = (),
    in_browser: bool = False,
    port: str | None = None,
    socket: str | None = None,
) -> int:
    if find_spec("textual") is None or find_spec("textual_serve") is None:
        raise UsageError(
            "top needs a package that is not installed; install sfad with its extra top, as in the checkout: pip install '.[top]'"
        )
    wanted = WatchRuns(id=0, root=root, name=list(name) or None, user=user, labels=labels(label))
    if in_browser:
        connect(socket).close()  # an error belongs here, not into the browser
        from ..top.web import serve

        return serve(_command(root, name, user, label, socket), 0 if port is None else whole("--port", port, 1, 65535))
    if port is not None:
        raise UsageError("--port needs --web")
    served = "TEXTUAL_DRIVER" in os.environ
    if not served and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal; 'sfactl tree' prints the runs once, 'sfactl events -f' what happens")
    if served:
        _end_with_server()
    # Imported here because Textual takes half a second, and is an extra.
    from ..top.app import run

    return run(socket, wanted)


def _end_with_server() -> None:
    """Have the kernel end this process with the server that shows it in a browser: no other process would."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(ExitCode.TERMINATED)


def _command(root: str | None, name: Sequence[str], user: str | None, label: Sequence[str], socket: str | None) -> list[str]:
    """Return the command that each browser window gets."""
    options = [("--socket", os.path.abspath(socket))] if socket is not None else []
    options += [("--user", user)] if user is not None else []
    options += [("--name", each) for each in name] + [("--label", each) for each in label]
    words = [word for option in options for word in option]
    return [sys.executable, "-P", "-m", "sfactl", "top", *words, *([root] if root is not None else [])]
