"""Looks for model calls that a run makes itself, past the gateway (docs/gateway.md).

While a run has an agent program in it, or a limit of cost or tokens that a person has typed, all
TCP connections are looked at now and then, in a thread. Other runs are never looked at, and without
such runs nothing wakes up.

A connection alone proves nothing. It tells neither which process of the run has it nor what it is
for: Claude Code sends telemetry to its API's host whatever its address is, two names may share an
address, and a server may have packages beside models. So what counts is traffic in the shape of a
call, and more of it where another explanation is likely.
"""

import math
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import trio
from msgspec import Struct, field

from ...agents import named
from ...core import events as e
from ...core.state.tree import typed_bounds
from ...host.linux.callers import ConnectionTable, Opened
from ...host.tasks import in_thread
from ...processes import kernel
from ...processes.launcher import Launcher, Unidentifiable
from ...protocol.types import RunId
from ...runs.live import Live
from .feature import GatewayConfig

LOOK_EVERY, LOOK_EVERY_MAX = 1.0, 10.0
"""Seconds between two looks, after a program was seen or something was sent, and after a long while
without anything: an idle terminal costs little."""
SLOWER = 1.25
RESOLVED_FOR = 300.0
"""Seconds for which the addresses of a name are used again."""
_BUILT_IN = tuple(upstream.url for upstream in GatewayConfig().upstreams.values())
_PORTS = {"http": 80, "https": 443}

Api = tuple[str, int]
"""The host and the port of a model's API."""


# ---- What a connection has carried

SOME = 512
"""Bytes from which on something was asked: less is TLS and HTTP/2 that keep a connection."""
WORDS = 256
"""Bytes between two looks from which on a reply has grown, for the same reason."""
PROMPT, TELEMETRY = 8 << 10, 16 << 10
"""Bytes of a request that hold a prompt with tools, and that only such a prompt has where telemetry
may be sent: batches of it are answered at once."""
FULL = 1024
"""Bytes of a segment, on average, from which on a body was sent: a download asks in small ones."""
STREAMS = 3
"""Looks at which a reply has grown while nothing was sent: the words of a model come one by one."""
FASTEST = 64 << 10
"""Bytes a second of a reply that a model writes. A download is faster."""


class Traffic(Struct):
    """What went through one connection since the last request on it began."""

    last: Opened
    at: float
    run: RunId | None = None
    request: int = 0
    segments: int = 0
    reply: int = 0
    grown: int = 0
    """Looks at which the reply has grown since something was sent."""
    began: float = 0.0

    def take(self, now: Opened, at: float) -> bool:
        """Take what the connection has carried by now. Return whether that is more than before."""
        sent, received = now.sent - self.last.sent, now.received - self.last.received
        segments = now.segments - self.last.segments
        if sent >= SOME:
            if self.reply:  # else the same request goes on
                self.request = self.segments = self.reply = 0
            self.request += sent
            self.segments += segments
            self.reply += received
            self.grown, self.began = 0, at
        else:
            self.reply += received
            self.grown += received >= WORDS
        self.last, self.at = now, at
        return sent >= SOME or received > 0

    def is_call(self, *, certain: bool) -> bool:
        """Return whether that was a call, probably; `certain`: whatever else a program may send to
        the same place."""
        full = self.request >= FULL * self.segments
        streamed = self.grown >= STREAMS and self.reply <= FASTEST * (self.at - self.began)
        if certain:
            return streamed and full and self.request >= TELEMETRY
        return (streamed and self.request >= SOME) or (
            full and self.request >= PROMPT and self.reply > 0
        )


class ConnectionWatch:
    def __init__(
        self,
        live: Mapping[RunId, Live],
        launcher: Launcher,
        upstreams: Callable[[], Collection[str]],
        feed: e.Feed,
    ) -> None:
        """`upstreams` returns the URLs of the config's."""
        self._live = live
        self._launcher = launcher
        self._upstreams = upstreams
        self._feed = feed
        self._programs: dict[RunId, dict[tuple[int, int], str]] = {}
        """Agent programs that are alive, as far as is known, by pid and start; none in a run that
        is looked at because of its limits."""
        self._seen = trio.Event()
        self._traffic: dict[int, Traffic] = {}
        """By the kernel's number of the connection."""
        self._addresses = _Addresses()

    def run_began(self, run: RunId) -> None:
        """Look at the run from now on, if a person has set a limit of cost or tokens."""
        live = self._live.get(run)
        if live is not None and self._should_call(live) and any(typed_bounds(live.run)):
            self._programs.setdefault(run, {})
            self._seen.set()

    def agent_seen(self, run: RunId, process: e.AgentProcess) -> None:
        """Look at the run from now on, because an agent program was seen in it."""
        live = self._live.get(run)
        if live is not None and self._should_call(live):
            self._programs.setdefault(run, {})[process.pid, process.started] = process.program
            self._seen.set()

    def _should_call(self, live: Live) -> bool:
        """Return whether calls of the run should come through the gateway."""
        return live.gated and "connection" not in live.run.seen.bypassed

    async def serve(self) -> None:
        pause = LOOK_EVERY
        for run in self._live:
            self.run_began(run)  # of an earlier daemon
        while True:
            with trio.move_on_after(pause if self._programs else math.inf):
                await self._seen.wait()
                self._seen, pause = trio.Event(), LOOK_EVERY
                await trio.sleep(pause)
            self._forget()
            if self._programs:
                carried = await self._look()
                pause = LOOK_EVERY if carried else min(SLOWER * pause, LOOK_EVERY_MAX)
            else:
                self._traffic = {}

    def _forget(self) -> None:
        """Forget the programs that have ended, and the runs that need not be looked at any more."""
        for run, programs in list(self._programs.items()):
            alive = {each: program for each, program in programs.items() if kernel.is_alive(*each)}
            live = self._live.get(run)
            if live is not None and self._should_call(live):
                self._programs[run] = alive
                if alive or any(typed_bounds(live.run)):
                    continue
            del self._programs[run]

    async def _look(self) -> bool:
        """Look what the runs' connections to models have carried. Return whether they have."""
        apis = {run: set(self._apis(self._live[run])) for run in self._programs}
        wanted = {api for each in apis.values() for api in each}
        try:
            found = await in_thread(self._addresses.reached, wanted, abandon=True)
            runs = await self._runs_of({connection for connection, _ in found})
        except OSError:
            return False  # no thread, or no answer of the kernel: the next look may have one
        now, known, looked_at, carried = (
            trio.current_time(),
            dict[int, Traffic](),
            set[int](),
            False,
        )
        for connection, api in found:
            number = connection.number
            traffic = known.get(number) or self._traffic.get(number)
            if traffic is None:
                traffic = Traffic(connection.before, now, runs.get(number))
            known[number] = traffic
            run = traffic.run
            if run is not None and api in apis.get(run, ()) and number not in looked_at:
                looked_at.add(number)
                carried |= traffic.take(connection, now)
                self._tell(run, api, traffic)
        self._traffic = known
        return carried

    async def _runs_of(self, connections: Iterable[Opened]) -> dict[int, RunId | None]:
        """Return the runs of connections that were not seen before, by the connections' numbers.
        Without cgroups a process that has it tells whose one is."""
        fresh = [each for each in connections if each.number not in self._traffic]
        if self._launcher.containment == "cgroup":
            return {each.number: self._launcher.run_of_cgroup(each.cgroup) for each in fresh}
        inodes = {each.inode for each in fresh}
        holders = await in_thread(kernel.holders, inodes, abandon=True) if inodes else {}
        return {each.number: self._run_of(holders.get(each.inode)) for each in fresh}

    def _run_of(self, pid: int | None) -> RunId | None:
        with suppress(Unidentifiable):
            return None if pid is None else self._launcher.run_of(pid, None)
        return None

    def _tell(self, run: RunId, api: Api, traffic: Traffic) -> None:
        live, programs = self._live.get(run), [*self._programs.get(run, {}).values()]
        if live is None:
            return
        # a program whose session file tells its calls needs no guess; and what comes through the
        # gateway is most likely all
        told = any(
            (known := named(each)) and (kept := known.session_files) and not kept.avoidable
            for each in programs
        )
        called = live.run.account.seen_by_gateway is not None
        if traffic.is_call(certain=told or called):
            program, where = next(iter(programs), ""), f"{api[0]}:{api[1]}"
            self._feed(e.ModelReached(trio.current_time(), run, program, where, traffic.request))

    def _apis(self, live: Live) -> Iterator[Api]:
        """Yield the APIs to which a call of the run may go."""
        own = self._live[live.lineage_ids[0]].setups.upstreams.values()
        urls = (*_BUILT_IN, *self._upstreams(), *(each.url for each in own))
        yield from (api for url in urls if (api := _api_of(url)) is not None)


class _Addresses(Struct):
    """The addresses of APIs. Used in one thread at a time."""

    _known: dict[Api, tuple[float, frozenset[bytes]]] = field(default_factory=dict)

    def reached(self, apis: Collection[Api]) -> list[tuple[Opened, Api]]:
        """Return the connections that lead to one of these APIs. Names are resolved only where a
        connection has the port."""
        table = ConnectionTable()
        try:
            connections = table.connections({port for _, port in apis})
        finally:
            table.close()
        ports = {connection.port for connection in connections}
        hosts = {api: self._of(api) for api in sorted(apis) if api[1] in ports}
        return [
            (connection, api)
            for connection in connections
            for api, known in hosts.items()
            if connection.port == api[1] and connection.host in known
        ]

    def _of(self, api: Api) -> frozenset[bytes]:
        now = time.monotonic()
        until, known = self._known.get(api, (0.0, frozenset()))
        if now < until:
            return known
        found = set()
        # a name that cannot be resolved here has no connection to be found
        with suppress(OSError, UnicodeError):
            for family, _, _, _, address in socket.getaddrinfo(*api, type=socket.SOCK_STREAM):
                found.add(socket.inet_pton(family, str(address[0]).partition("%")[0]))
        self._known[api] = now + RESOLVED_FOR, frozenset(found)
        return frozenset(found)


def _api_of(url: str) -> Api | None:
    with suppress(ValueError):  # a tree's upstream is as its person wrote it
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
        return (parts.hostname, port) if parts.hostname and port else None
    return None
