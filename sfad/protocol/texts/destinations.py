"""Hosts that a run in a network of its own reaches through the gateway, as words."""

import ipaddress
import re
from typing import NamedTuple

FORMS = "HOST, HOST:PORT, *.DOMAIN or *; without a port, 443 and 80 are meant"
PORTS = (443, 80)
"""Of an entry without a port."""
MAX_PORT = 65535

_NAME = r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*"
_HOST = re.compile(_NAME)
_ENTRY = re.compile(rf"(\*|(?:\*\.)?{_NAME}|\[[0-9a-f:.]+\])(?::([1-9][0-9]{{0,4}}))?")
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_MOST_CHARACTERS = 253
"""Of a name (RFC 1035, section 2.3.4)."""


class Destination(NamedTuple):
    """An entry of a list. `host` is `*`, `*.DOMAIN`, or as `host_of` returns it."""

    host: str
    port: int | None


def destination(text: str) -> Destination:
    """Return an entry of a list. Raises `ValueError`."""
    found = _ENTRY.fullmatch(text.lower().removesuffix("."))
    try:
        if found is None or int(found[2] or 0) > MAX_PORT:
            raise ValueError("another form")
        host = found[1] if found[1].startswith("*") else host_of(found[1])
    except ValueError:
        hint = "an IPv6 address is written in [brackets], other letters than a-z as xn--"
        raise ValueError(f"'{text[:80]}' is not {FORMS}; {hint}") from None
    return Destination(host, int(found[2]) if found[2] else None)


def host_of(text: str) -> str:
    """Return the one spelling of a host: lower case, without the last dot; an address as Python
    writes it, without brackets. Raises `ValueError`, also for the odd spellings of addresses that
    getaddrinfo(3) knows, such as 127.1 and 0x7f000001."""
    host = text.lower().removesuffix(".")
    if host.startswith("[") and host.endswith("]"):
        return str(ipaddress.IPv6Address(host[1:-1]))
    if not _HOST.fullmatch(host) or len(host) > _MOST_CHARACTERS:
        raise ValueError(f"'{text[:80]}' is not the name of a host")
    return str(ipaddress.IPv4Address(host)) if _NUMERIC.fullmatch(host) else host
