"""How other devices may reach this machine, and the link for them."""

import os
import socket
import sys
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

import psutil
import segno

from ..exits import ExitCode, UsageError
from .access import login_link
from .logins import LINK_SECONDS, Logins, Running, home, running
from .options import LISTEN, WebOptions

_ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses for documentation (RFC 5737, RFC 3849). Nothing is sent to them."""


def of_machine() -> list[str]:
    """Return the machine's name if the network knows it, and its addresses, that of the way out of
    it first; loopback last."""
    own = [
        each.address
        for found in psutil.net_if_addrs().values()
        for each in found
        if each.family in (socket.AF_INET, socket.AF_INET6) and _is_usable(each.address)
    ]
    own.sort(key=lambda each: (ip_address(each).is_loopback, each not in _ways_out(), ":" in each))
    name = socket.getfqdn()
    known: set[str] = set()
    with suppress(OSError):
        known = {str(address[0]) for *_, address in socket.getaddrinfo(name, None)}
    reached = any(each in known for each in own if not ip_address(each).is_loopback)
    return [name, *own] if reached else [*own, name]


def _is_usable(address: str) -> bool:
    # a link-local address of IPv6 needs the name of an interface, which no browser takes
    return "%" not in address


def _ways_out() -> set[str]:
    found = set()
    for target in _ELSEWHERE:
        family = socket.AF_INET6 if ":" in target else socket.AF_INET
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((target, 9))
            found.add(str(sock.getsockname()[0]))
    return found


def _is_loopback(origin: str) -> bool:
    host = urlsplit(origin).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def print_link(wanted: WebOptions) -> int:
    """Print a link of a console of this user that runs. Return the exit code. Raise `UsageError` if
    it is not clear which."""
    try:
        found = running()
    except ValueError as error:
        raise UsageError(str(error)) from None
    name = str(wanted.listen)
    if wanted.listen == LISTEN and len(found) == 1:
        [name] = found
    if name not in found:
        where = f" at {name}" if wanted.listen != LISTEN else ""
        others = f"; --listen one of: {', '.join(sorted(found))}" if found else ""
        raise UsageError(
            f"no console of yours runs{where} (none is noted in {home(os.environ)}){others}; "
            "start one with sfactl web, or keep one with sfad install --web"
        )
    directory, console = found[name]
    _print(console, Logins(directory).link(), name.rpartition(":")[2])
    return ExitCode.DONE


def _print(console: Running, token: str, port: str) -> None:
    reached = [each for each in console.origins if not _is_loopback(each)]
    links = [login_link(origin, token) for origin in reached or console.origins]
    print(f"open {links[0]}")
    for link in links[1:]:
        print(f"  or {link}")
    if not console.elsewhere:
        own = of_machine()[0]
        address = f"[{own}]" if ":" in own else own
        note = (
            "on this machine only: the console listens on loopback. For a telephone, start it "
            f"with --listen {address}:{port} --cert FILE --key FILE, or behind a proxy "
            "(docs/console.md)"
        )
    else:
        note = f"once, within {LINK_SECONDS / 60:.0f} minutes"
        # an encoding without block elements has no codes either
        if sys.stdout.isatty() and sys.stdout.encoding.lower().startswith("utf"):
            print()
            segno.make(links[0], micro=False).terminal(border=2, compact=True)
    print(f"the link works in one browser, {note}", file=sys.stderr)
