"""`python -m sfad.features.gateway.program --daemon SOCKET --journal FILE [--user UID]`, with the
listener as descriptor 3. The daemon starts it.

For another user, it opens and imports all that the user may not be able to read, and becomes that
user before it accepts a connection or asks the daemon anything.
"""

# ruff: noqa: E402 - it says what holds for the other imports
import gc

# until start-up is done and its objects are frozen: collections take a seventh of a start
gc.disable()

import argparse
import encodings.idna  # noqa: F401 - socket.getaddrinfo imports it when it is first called
import os
import resource
import signal
import socket
import sys
from contextlib import aclosing
from pathlib import Path

import trio

from ....host.probe import no_inodes
from ....host.secrecy import become_user, hide_memory
from ....protocol.inherited import survive_stray_signals
from .bodies.coding import import_decoders
from .bodies.estimate import Estimates
from .bodies.reader import BodyReader
from .call_journal import Journal
from .call_tally import BodyMemory
from .daemon_link import ALONE_MAX, DaemonLink
from .egress import Egress
from .exchange import Shared, SilenceWatch
from .local_models import LocalModels
from .proxy import MAX_CONNECTIONS, SPARE_DESCRIPTORS, Proxy
from .upstream_connections import UpstreamConnections, new_client
from .upstreams import Trust

LISTENER = 3
LAST_SETTLEMENTS = 5.0
"""Seconds that a gateway which was told to end has to tell the daemon of its last calls."""


def main() -> None:
    survive_stray_signals(signal.SIGINT, signal.SIGUSR2)
    hide_memory()
    words = argparse.ArgumentParser(prog="sfad gateway")
    words.add_argument("--daemon", required=True, metavar="SOCKET")
    words.add_argument("--journal", required=True, metavar="FILE")
    words.add_argument("--user", type=int, metavar="UID")
    given = words.parse_args()
    try:
        journal = Journal(given.journal, _complain)
    except OSError as error:
        _complain(f"it cannot note its calls: {error}{no_inodes(Path(given.journal))}")
        sys.exit(1)
    trio.run(_serve, given.daemon, journal, given.user)


async def _serve(daemon: str, journal: Journal, user: int | None) -> None:
    os.set_inheritable(LISTENER, False)  # what reads bodies may end a moment later
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(socket.socket(fileno=LISTENER)))
    link = DaemonLink(daemon, LISTENER, journal)
    trust = Trust(_complain)
    reader = BodyReader(user)
    async with (
        new_client(trust.context) as client,
        new_client(trust.context, proxies=False) as direct,
        aclosing(UpstreamConnections(trust.context)) as connections,
        aclosing(UpstreamConnections(trust.context, proxies=False)) as passing,
    ):
        # each connection may have one to an upstream
        most = min(
            MAX_CONNECTIONS,
            max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_DESCRIPTORS) // 2),
        )
        egress = Egress(most=max(1, most // 2))  # calls need the others
        memory = BodyMemory(several_users=user is None and os.geteuid() == 0)
        shared = Shared(
            link,
            client,
            connections,
            passing,
            lambda: link.upstreams,
            lambda: link.ungated,
            Estimates(),
            LocalModels(direct),
            memory,
            trust,
            egress,
            reader,
            SilenceWatch(),
        )
        proxy = Proxy(shared, most=most, trouble=_complain)
        if user is not None:
            await _become(user, reader, trust)
        gc.freeze()
        gc.enable()
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.serve)
                nursery.start_soon(shared.silence.serve)
                nursery.start_soon(_end_alone, link, proxy, nursery.cancel_scope)
                if user is not None:
                    nursery.start_soon(_end_without, reader, nursery.cancel_scope)
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


async def _become(user: int, reader: BodyReader, trust: Trust) -> None:
    """Become a user, with all that this process needs and the user may not be able to read. Raises
    `OSError`."""
    reader.start()
    import_decoders()
    if (file := os.environ.get("SSL_CERT_FILE")) is not None:
        await trust.add(file)
    become_user(user)


async def _accept(
    proxy: Proxy, listener: trio.SocketListener, nursery: trio.Nursery, scope: trio.CancelScope
) -> None:
    with scope:
        await proxy.serve(listener, nursery)


async def _end_alone(link: DaemonLink, proxy: Proxy, scope: trio.CancelScope) -> None:
    while True:
        await trio.sleep(1)
        if (
            link.alone_since is not None
            and not proxy.under_way
            and trio.current_time() - link.alone_since > ALONE_MAX
        ):
            scope.cancel()


async def _end_without(reader: BodyReader, scope: trio.CancelScope) -> None:
    """End this process when it cannot read bodies any more. The daemon starts another, which
    can."""
    await reader.ended()
    _complain("it ends, because the process that forks readers of bodies has ended")
    scope.cancel()


def _complain(message: str) -> None:
    print(f"sfad gateway: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
