"""The options of `sfactl web`."""

from ipaddress import ip_address
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from ..options.shared import Socket, Value, flag


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
    link: Annotated[
        bool,
        flag(
            "Print a link to a console of yours that is running, for another device, and exit",
            "--link",
        ),
    ] = False
    check: Annotated[bool, flag("Check the other options, and exit", "--check")] = False
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
