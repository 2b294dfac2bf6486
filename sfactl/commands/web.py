from importlib.util import find_spec
from ipaddress import ip_address
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from ..app import OverFleet, app
from ..connection import connect
from ..exits import UsageError
from ..fleet import Fleet
from ..options import Socket, Value, flag
from ..spreading import spread


class Address(NamedTuple):
    """Where to listen: an IP address and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


LISTEN = Address("127.0.0.1", 8477)


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not of the form ADDRESS:PORT, as {LISTEN}")
    return Address(ip(host.strip("[]")), int(port))


def ip(text: str) -> str:
    """Return an IP address in its usual form. Raise `ValueError`."""
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None


def _origin(text: str) -> str:
    parts = urlsplit(text)
    more = parts.path not in ("", "/") or parts.query or parts.fragment
    if parts.scheme != "https" or not parts.hostname or more:
        raise ValueError(f"{text!r} is not an address such as https://agents.example.org")
    return f"https://{parts.netloc.lower()}"


class WebOptions(Struct, frozen=True):
    socket: Socket = None
    listen: Annotated[
        Address,
        Value("ADDRESS:PORT", _address).option(
            f"Where to listen (default: {LISTEN}); port 0 takes a free one"
        ),
    ] = LISTEN
    opens: Annotated[bool, flag("Open the link in the browser of this machine", "--open")] = False
    cert: Annotated[
        str | None,
        Value("FILE").option("Serve TLS with this certificate, and those above it (PEM)"),
    ] = None
    key: Annotated[str | None, Value("FILE").option("The key of the certificate (PEM)")] = None
    proxy: Annotated[
        str | None,
        Value("URL", _origin).option(
            "The address of a proxy in front, which serves TLS: https://agents.example.org"
        ),
    ] = None
    sender: Annotated[
        str | None,
        Value("WHO").option(
            "Whose connections are the proxy's: a user of this machine, or an IP address", "--from"
        ),
    ] = None


@app.command(cls=OverFleet)
@spread(WebOptions)
def web(wanted: WebOptions) -> int:
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
    return serve(wanted)


def serve(wanted: WebOptions, fleet: Fleet | None = None) -> int:
    """Serve the runs of a daemon, or of a fleet. Return the exit code. Raise `Quit`."""
    if find_spec("starlette") is None or find_spec("hypercorn") is None:
        raise UsageError(
            "web needs packages that are not installed; "
            "install sfad with its extra web, as in the checkout: pip install '.[web]'"
        )
    # Imported here because they take a third of a second, and are an extra.
    from ..web import serving
    from ..web.source import Daemon

    place = serving.place_of(wanted)
    if fleet is not None:
        from ..web.source import Nodes

        return serving.serve(Nodes(fleet), place, opens=wanted.opens)
    connect(wanted.socket).close()  # an error belongs here, not into the browser
    return serving.serve(Daemon(wanted.socket), place, opens=wanted.opens)
