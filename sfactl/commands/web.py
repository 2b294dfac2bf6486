from importlib.util import find_spec
from typing import Annotated

import typer

from ..app import OverFleet, app
from ..connection import connect
from ..exits import UsageError
from ..fleet import Fleet
from ..options import Socket

LISTEN = "127.0.0.1:8477"


@app.command(cls=OverFleet)
def web(
    socket: Socket = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="ADDRESS:PORT",
            help=f"Where to listen (default: {LISTEN}); port 0 takes a free one",
        ),
    ] = LISTEN,
    opens: Annotated[
        bool, typer.Option("--open", help="Open the link in the browser of this machine")
    ] = False,
    cert: Annotated[
        str | None,
        typer.Option(
            "--cert",
            metavar="FILE",
            help="Serve TLS with this certificate, and those above it (PEM)",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="FILE", help="The key of the certificate (PEM)")
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(
            "--proxy",
            metavar="URL",
            help="The address of a proxy in front, which serves TLS: https://agents.example.org",
        ),
    ] = None,
    sender: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHO",
            help="Whose connections are the proxy's: a user of this machine, or an IP address",
        ),
    ] = None,
) -> int:
    """Show runs in a browser: look, steer and plot, also from a telephone.

    Prints a link on loopback. It logs one browser in, once; the page has links for other
    devices. The console acts with your rights and ends with Ctrl-C; the runs go on. With
    --fleet, it shows and steers the runs of all nodes. Needs the extra web, as in: pip install
    '.[web]' in the checkout.

    From another machine: forward the port (ssh -L 8477:127.0.0.1:8477 HOST), or listen
    elsewhere with --listen, and then with a certificate, or behind a proxy that has one
    (docs/console.md).

    Exit codes: 0 ended by Ctrl-C, SIGTERM or SIGHUP; 2 a wrong option, a port that is taken, or
    the extra is not installed; 69 the daemon cannot be reached.
    """
    return serve(listen, opens, cert, key, proxy, sender, socket)


def serve(
    listen: str,
    opens: bool,
    cert: str | None,
    key: str | None,
    proxy: str | None,
    sender: str | None,
    socket: str | None = None,
    fleet: Fleet | None = None,
) -> int:
    """Serve the runs of a daemon, or of a fleet. Return the exit code. Raise `Quit`."""
    if find_spec("starlette") is None or find_spec("hypercorn") is None:
        raise UsageError(
            "web needs packages that are not installed; "
            "install sfad with its extra web, as in the checkout: pip install '.[web]'"
        )
    # Imported here because they take a third of a second, and are an extra.
    from ..web import serving
    from ..web.source import Daemon

    place = serving.place_of(listen, cert, key, proxy, sender)
    if fleet is not None:
        from ..web.source import Nodes

        return serving.serve(Nodes(fleet), place, opens=opens)
    connect(socket).close()  # an error belongs here, not into the browser
    return serving.serve(Daemon(socket), place, opens=opens)
