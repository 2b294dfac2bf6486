"""Looks for connections that lead from an agent program to its model past the gateway (docs/gateway.md).

While an agent program is alive in a run whose calls should come through the gateway and have not, all TCP connections are looked at
now and then, in a thread. A run without an agent program is never looked at, and without such runs nothing wakes up.

A connection tells neither which process of the run has it nor what it is for. So the run must hold the program, the connection must
be there in two looks, and it must not be one that the program makes anyway.
"""

import math
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import trio

from ...config import GatewayConfig
from ...core import events as e
from ...gateway.callers import Kernel, Opened
from ...host.tasks import in_thread
from ...processes import procfs
from ...processes.launcher import Launcher
from ...protocol.known import PROGRAMS
from ...protocol.types import RunId
from ...runs.live import Live

LOOK_EVERY, LOOK_EVERY_MAX = 2.0, 30.0
"""Seconds between two looks, after a program was seen and after a long while without anything: an idle terminal costs little."""
SLOWER = 1.25
RESOLVED_FOR = 300.0
"""Seconds for which the addresses of a name are used again."""
_BUILT_IN = tuple(upstream.url for upstream in GatewayConfig().upstreams.values())
_PORTS = {"http": 80, "https": 443}

Api = tuple[str, int]
"""The host and the port of a model's API."""
Reached = tuple[RunId, str, str]
"""A run, the agent program in it, and the API."""


class ConnectionWatch:
    def __init__(
        self,
        live: Mapping[RunId, Live],
        launcher: Launcher,
        upstreams: Callable[[], Collection[str]],
        feed: Callable[[e.Event], None],
    ) -> None:
        """`upstreams` returns the URLs of the config's."""
        self._live = live
        self._launcher = launcher
        self._upstreams = upstreams
        self._feed = feed
        self._programs: dict[RunId, dict[tuple[int, int], str]] = {}
        """Those that are alive, as far as is known, by pid and start."""
        self._seen = trio.Event()
        self._before: set[Reached] = set()
        self._addresses = _Addresses()

    def agent_seen(self, run: RunId, process: e.AgentProcess) -> None:
        """Look at the run from now on, because an agent program was seen in it."""
        live = self._live.get(run)
        if live is not None and _should_call(live) and self._launcher.containment == "cgroup":
            self._programs.setdefault(run, {})[process.pid, process.started] = process.program
            self._seen.set()

    async def serve(self) -> None:
        pause = LOOK_EVERY
        while True:
            with trio.move_on_after(pause if self._programs else math.inf):
                await self._seen.wait()
                self._seen, pause = trio.Event(), LOOK_EVERY
                await trio.sleep(pause)
            self._forget()
            if self._programs:
                reached = await self._look()
                for run, program, api in sorted(reached & self._before):
                    self._feed(e.ModelReached(trio.current_time(), run, program, api))
                self._before = reached
                pause = LOOK_EVERY if reached else min(SLOWER * pause, LOOK_EVERY_MAX)

    def _forget(self) -> None:
        """Forget the programs that have ended, and the runs that need not be looked at any more."""
        for run, programs in list(self._programs.items()):
            alive = {each: program for each, program in programs.items() if procfs.is_alive(*each)}
            live = self._live.get(run)
            if alive and live is not None and _should_call(live):
                self._programs[run] = alive
            else:
                del self._programs[run]

    async def _look(self) -> set[Reached]:
        """Return which programs' APIs the runs are connected to."""
        apis = {run: dict(self._apis(self._live[run], programs.values())) for run, programs in self._programs.items()}
        wanted = {api for each in apis.values() for api in each}
        try:
            found = await in_thread(self._addresses.reached, wanted, abandon=True)
        except OSError:
            return set()  # no thread, or no answer of the kernel: the next look may have one
        reached = set()
        for connection, api in found:
            run = self._launcher.run_of_cgroup(connection.cgroup)
            if run is not None and api in apis.get(run, ()):
                reached.add((run, apis[run][api], f"{api[0]}:{api[1]}"))
        return reached

    def _apis(self, live: Live, programs: Collection[str]) -> Iterator[tuple[Api, str]]:
        """Yield the APIs to which a connection of the run counts, each with a program in it."""
        own = self._live[live.lineage_ids[0]].setups.upstreams.values()
        for url in (*_BUILT_IN, *self._upstreams(), *(each.url for each in own)):
            api = _api_of(url)
            program = next((each for each in programs if api is not None and _connects(each) != api[0]), None)
            if api is not None and program is not None:
                yield api, program


def _connects(program: str) -> str | None:
    """Return the host to which a program connects for other things than calls."""
    known = PROGRAMS.get(program)
    return known.connects if known is not None else None


class _Addresses:
    """The addresses of APIs. Used in one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[Api, tuple[float, frozenset[bytes]]] = {}

    def reached(self, apis: Collection[Api]) -> set[tuple[Opened, Api]]:
        """Return the connections that lead to one of these APIs. Names are resolved only where a connection has the port."""
        kernel = Kernel()
        try:
            connections = kernel.connections({port for _, port in apis})
        finally:
            kernel.close()
        ports = {connection.port for connection in connections}
        hosts = {api: self._of(api) for api in apis if api[1] in ports}
        return {
            (connection, api) for connection in connections for api, known in hosts.items() if _leads_to(connection, api, known)
        }

    def _of(self, api: Api) -> frozenset[bytes]:
        now = time.monotonic()
        until, known = self._known.get(api, (0.0, frozenset()))
        if now < until:
            return known
        found = set()
        with suppress(OSError, UnicodeError):  # a name that cannot be resolved here has no connection to be found
            for family, _, _, _, address in socket.getaddrinfo(*api, type=socket.SOCK_STREAM):
                found.add(socket.inet_pton(family, str(address[0]).partition("%")[0]))
        self._known[api] = now + RESOLVED_FOR, frozenset(found)
        return frozenset(found)


def _leads_to(connection: Opened, api: Api, addresses: frozenset[bytes]) -> bool:
    return connection.port == api[1] and connection.host in addresses


def _api_of(url: str) -> Api | None:
    with suppress(ValueError):  # a tree's upstream is as its person wrote it
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
        return (parts.hostname, port) if parts.hostname and port else None
    return None


def _should_call(live: Live) -> bool:
    """Return whether calls of the run should come through the gateway, and none of its own has."""
    run = live.run
    return live.gated and "connection" not in run.bypassed and run.account.seen_by_gateway is None
