"""The nodes of the fleet, and connections to their daemons.

A run's name in the fleet is NODE/ID. The daemon here opens a way to another node's daemon, and on
it this package speaks as to any daemon: a place `fleet:NODE:SOCKET` stands for a socket, with which
each verb can connect.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.fleet import FleetWay, OpenFleet
from sfad.protocol.requests.listing import Info
from sfad.protocol.types import FleetPlace, Hold, RunInfo

from . import connection, output
from .connection import HANDSHAKE_TIMEOUT, Client, Unreachable
from .exits import ExitCode, Quit

T = TypeVar("T")


PLACE = "fleet:"
ANSWER = 10.0
"""Seconds that a node has for an answer before it is named as one that does not answer."""

_WHERE_IT_EXECUTES = frozenset({"info", "logs", "limit", "approve", "deny"})
"""Verbs about a run that its node answers. Others are for the node that has started it, whose
decision reaches the other."""


class FleetClient(Client):
    """A connection to the daemon of another node."""

    def __init__(self, place: str) -> None:
        node, _, flag = place.removeprefix(PLACE).partition(":")
        self._node, self._flag = node, flag or None
        try:
            super().__init__(place)
        except Unreachable as error:
            raise self._unreachable(error) from None
        self.be_patient(None)

    def _first_open(self) -> None:
        self._open(HANDSHAKE_TIMEOUT)  # the actor of the node waits for its daemon

    def _unreachable(self, error: Unreachable) -> Unreachable:
        return Unreachable(
            self.path,
            error.kind,
            f"node {self._node} does not answer; sfactl fleet nodes lists them",
        )

    def _reach(self, seconds: float) -> socket.socket:
        with connection.connect(self._flag) as client:
            client.be_patient(seconds)
            _, descriptors = client.ask(OpenFleet(id=0, node=self._node), FleetWay)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptors[0])
        sock.settimeout(min(seconds, ANSWER))
        return sock


connection.other_node = FleetClient


class Fleet:
    """The nodes, and how to reach each."""

    def __init__(self, flag: str | None) -> None:
        self._flag = flag
        self.names: list[str] = []
        self.look()

    def look(self) -> None:
        """Learn of nodes that have joined. Those that were known stay, also while they do not
        answer."""
        with connection.connect(self._flag) as client:
            way = client.call(OpenFleet(id=0), FleetWay)
        self.own = way.node
        self.names = [*self.names, *(name for name in way.nodes if name not in self.names)]

    def place(self, node: str) -> str | None:
        """Return what `connect` takes for a node."""
        return self._flag if node == self.own else f"{PLACE}{node}:{self._flag or ''}"

    def find(self, handle: str, verb: str) -> tuple[str, str]:
        """Return the node whose daemon answers for a run, and the run's id or name there."""
        node, slash, run = handle.rpartition("/")
        node, run = (node, run) if slash else (self.own, handle)
        if verb not in _WHERE_IT_EXECUTES:
            return node, run
        for _ in range(2):  # a run that was granted is never granted again
            with connection.connect(self.place(node)) as client:
                place = client.call(Info(id=0, run=run), RunReply).run.fleet
            if place is None or place.node is None or not place.run:
                break
            node, run = place.node, place.run
        return node, run

    def each(
        self, work: Callable[[str], T], within: float | None = ANSWER, without: Collection[str] = ()
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Return what `work` returns for each node, all at once, and why others have not answered.
        `without`: do not ask these."""
        names = [name for name in self.names if name not in without]
        found: dict[str, T] = {}
        failed: dict[str, str] = {}

        def do(node: str) -> None:
            try:
                found[node] = work(node)
            except (Quit, OSError) as error:
                failed[node] = error.message if isinstance(error, Quit) else str(error)

        threads = [threading.Thread(target=do, args=(node,), daemon=True) for node in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(within)
        late = {
            node: f"no answer within {ANSWER:g} s"
            for node in names
            if node not in found and node not in failed
        }
        return found, failed | late


def tell_unanswered(unanswered: Mapping[str, str]) -> int:
    for node, why in sorted(unanswered.items()):
        output.note(f"sfactl: node {node}: {why}")
    return ExitCode.UNAVAILABLE if unanswered else ExitCode.DONE


# ---- runs of several nodes as one list


_WORD = re.compile(r"(?<= )([a-z])([0-9a-v]+)(?![\w/])")


class Names:
    """What runs are called in the fleet. A run that one node has granted to another is told of by
    both."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], FleetPlace] = {}
        """Of runs that another node has granted, by the node where they execute."""

    def learn(self, node: str, runs: Iterable[RunInfo]) -> None:
        self._given |= {
            (node, run.id): run.fleet for run in runs if run.fleet is not None and run.fleet.giver
        }

    def forget(self, node: str) -> None:
        """Forget what a node has told."""
        self._given = {key: place for key, place in self._given.items() if key[0] != node}

    def is_told_by_another(self, run: RunInfo) -> bool:
        """Return whether the node where the run executes has told of it."""
        place = run.fleet
        return (
            place is not None and place.node is not None and (place.node, place.run) in self._given
        )

    def named(self, node: str, run: RunInfo) -> RunInfo:
        """Return the run as the fleet knows it. `node`: which tells of it."""
        own, root = self._given.get((node, run.id)), self._given.get((node, run.root_id))
        return replace(
            run,
            id=own.id if own is not None else f"{node}/{run.id}",
            root_id=root.root if root is not None else f"{node}/{run.root_id}",
            parent_id=own.parent
            if own is not None
            else run.parent_id and self.of(node, run.parent_id),
            depth=run.depth + (root.depth if root is not None else 0),
            holds=tuple(self._named_hold(node, hold) for hold in run.holds),
        )

    def _named_hold(self, node: str, hold: Hold) -> Hold:
        """Return a hold whose command works on other nodes, too."""

        def name(found: re.Match[str]) -> str:
            # an id, and no verb: its letter tells how many digits follow
            is_id = len(found[2]) == ord(found[1]) - ord("a") + 1
            return self.of(node, found[0]) if is_id else found[0]

        if hold.command is None:
            return hold
        return replace(hold, command=_WORD.sub(name, hold.command))

    def of(self, node: str, run_id: str) -> str:
        """Return the name of a run by its id on a node."""
        given = self._given.get((node, run_id))
        return given.id if given is not None else f"{node}/{run_id}"


def merged(found: Mapping[str, Sequence[RunInfo]]) -> list[tuple[str, RunInfo]]:
    """Return the runs of all nodes with their names in the fleet, each once, with the node where it
    executes."""
    names = Names()
    for node, runs in found.items():
        names.learn(node, runs)
    shown = [
        (
            run.fleet.node if run.fleet is not None and run.fleet.node is not None else node,
            names.named(node, run),
        )
        for node, runs in found.items()
        for run in runs
        if not names.is_told_by_another(run)
    ]
    return sorted(shown, key=lambda each: each[1].created_at)
