"""Show runs in a browser: look, steer and plot, also from a telephone.

Prints a link on loopback. It logs one browser in, once; the page has links for other devices. The console acts with your rights and
ends with Ctrl-C; the runs go on. With --fleet, it shows and steers the runs of all nodes. Needs the extra web, as in: pip install
'.[web]' in the checkout.

From another machine: forward the port (ssh -L 8477:127.0.0.1:8477 HOST), or listen elsewhere with --listen, and then with a
certificate, or behind a proxy that has one (docs/console.md).

Exit codes: 0 ended by Ctrl-C, SIGTERM or SIGHUP; 2 a wrong option, a port that is taken, or the extra is not installed; 69 the
daemon cannot be reached.
"""

from __future__ import annotations

from importlib.util import find_spec

from ..connection import connect
from ..exits import UsageError
from ..fleet import Fleet
from ..options import FLEET, SOCKET, Option, Parameter

LISTEN = "127.0.0.1:8477"

PARAMETERS: tuple[Parameter, ...] = (
    SOCKET,
    FLEET,
    Option(("--listen",), "listen", f"Where to listen (default: {LISTEN}); port 0 takes a free one", "ADDRESS:PORT"),
    Option(("--open",), "opens", "Open the link in the browser of this machine"),
    Option(("--cert",), "cert", "Serve TLS with this certificate, and those above it (PEM)", "FILE"),
    Option(("--key",), "key", "The key of the certificate (PEM)", "FILE"),
    Option(("--proxy",), "proxy", "The address of a proxy in front, which serves TLS: https://agents.example.org", "URL"),
    Option(("--from",), "sender", "Whose connections are the proxy's: a user of this machine, or an IP address", "WHO"),
)


def main(
    *,
    listen: str = LISTEN,
    opens: bool = False,
    cert: str | None = None,
    key: str | None = None,
    proxy: str | None = None,
    sender: str | None = None,
    socket: str | None = None,
    fleet: Fleet | None = None,
) -> int:
    if find_spec("starlette") is None or find_spec("hypercorn") is None:
        raise UsageError(
            "web needs packages that are not installed; install sfad with its extra web, as in the checkout: pip install '.[web]'"
        )
    # Imported here because they take a third of a second, and are an extra.
    from ..web.serving import place_of, serve
    from ..web.source import Daemon

    place = place_of(listen, cert, key, proxy, sender)
    if fleet is not None:
        from ..web.source import Nodes

        return serve(Nodes(fleet), place, opens=opens)
    connect(socket).close()  # an error belongs here, not into the browser
    return serve(Daemon(socket), place, opens=opens)
