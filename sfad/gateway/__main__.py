"""`python -m sfad.gateway --daemon SOCKET --journal FILE`, with the listener as descriptor 3. The daemon starts it."""

import argparse
import gc
import resource
import signal
import socket
import sys

import trio

from ..host.secrecy import hide_memory
from .as_user import open_clients
from .daemon_link import ALONE_MAX, DaemonLink
from .egress import Egress
from .estimate import Estimates
from .exchange import Shared, new_client
from .journal import Journal
from .memory import Memory
from .proxy import MAX_CONNECTIONS, SPARE_DESCRIPTORS, Proxy
from .reading import BodyReader
from .trust import Trust

LISTENER = 3
LAST_SETTLEMENTS = 5.0
"""Seconds that a gateway which was told to end has to tell the daemon of its last calls."""


def main() -> None:
    hide_memory()
    words = argparse.ArgumentParser(prog="sfad gateway")
    words.add_argument("--daemon", required=True, metavar="SOCKET")
    words.add_argument("--journal", required=True, metavar="FILE")
    given = words.parse_args()
    trio.run(_serve, given.daemon, Journal(given.journal, _complain))


async def _serve(daemon: str, journal: Journal) -> None:
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(socket.socket(fileno=LISTENER)))
    link = DaemonLink(daemon, LISTENER, journal)
    trust = Trust(_complain)
    async with open_clients(lambda: new_client(trust)) as clients:
        # each connection may have one to an upstream
        most = min(MAX_CONNECTIONS, max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_DESCRIPTORS) // 2))
        egress = Egress(most=max(1, most // 2))  # calls need the others
        shared = Shared(
            link, clients, lambda: link.upstreams, lambda: link.ungated, Estimates(), Memory(), trust, egress, BodyReader()
        )
        proxy = Proxy(shared, most=most, trouble=_complain)
        gc.freeze()
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.serve)
                nursery.start_soon(_end_alone, link, proxy, nursery.cancel_scope)
                await link.ready.wait()
                accepting = trio.CancelScope()
                nursery.start_soon(_accept, proxy, listener, nursery, accepting)
                async for number in signals:
                    if number == signal.SIGTERM:
                        break
                    link.learn_settings()
                accepting.cancel()
                await proxy.idle()
                with trio.move_on_after(LAST_SETTLEMENTS):
                    await link.settled()
                nursery.cancel_scope.cancel()


async def _accept(proxy: Proxy, listener: trio.SocketListener, nursery: trio.Nursery, scope: trio.CancelScope) -> None:
    with scope:
        await proxy.serve(listener, nursery)


async def _end_alone(link: DaemonLink, proxy: Proxy, scope: trio.CancelScope) -> None:
    while True:
        await trio.sleep(1)
        if link.alone_since is not None and not proxy.under_way and trio.current_time() - link.alone_since > ALONE_MAX:
            scope.cancel()


def _complain(message: str) -> None:
    print(f"sfad gateway: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
