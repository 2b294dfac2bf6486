"""Nodes of a fleet without Ray: daemons on this machine, each with an actor that is made of the
parts of the real one. What Ray does is done by a process that knows the nodes, passes calls on from
one to another, and has room for each run where it is asked to be."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sfad.features.fleet.messages import FleetNode, FleetPush, FleetTold
from sfad.features.fleet.ray.link import Link
from sfad.features.fleet.ray.tunnels import Message, Tunnels

from .harness import Daemon, running

ROOT = Path(__file__).parents[1]

CONFIG = """
[fleet]
address = "auto"
node = "{name}"
lease = {lease}
{more}
"""


class Actors:
    """The actors of all nodes."""

    def __init__(self, daemons: Mapping[str, str]) -> None:
        """`daemons`: their sockets by the names of the nodes."""
        self.cut: set[str] = set()
        """Nodes to which no call gets."""
        self.hung: set[str] = set()
        """Nodes whose actors stand still: no call of them or to them is answered."""
        self.gone: set[str] = set()
        """Nodes whose raylets are gone, as Ray tells."""
        self.head = True
        """The cluster's head answers."""
        self.later: list[Callable[[], None]] = []
        """Calls that hang."""
        self.nodes: dict[str, Actor] = {}
        for name, daemon in daemons.items():
            self.nodes[name] = Actor(name, daemon, self)


class Actor:
    def __init__(self, node: str, daemon: str, fleet: Actors) -> None:
        self._node, self._fleet = node, fleet
        self._heard: dict[str, float] = {}
        self._turns = threading.Lock()
        self._work: queue.Queue[FleetPush] = queue.Queue()
        self.tunnels = Tunnels(daemon, node, self._call)
        self.link = Link(node, daemon, self._way, self._work.put, lambda: None)
        for each in (self.link.serve, self._serve):
            threading.Thread(target=each, daemon=True).start()

    def _call(
        self, node: str, messages: list[Message], then: Callable[[list[str] | None], None]
    ) -> None:
        other = self._fleet.nodes.get(node)
        if other is None or {node, self._node} & self._fleet.cut:
            then(None)
            return
        if {node, self._node} & self._fleet.hung:
            self._fleet.later.append(lambda: self._call(node, messages, then))
            return
        with self._turns:
            unknown = other.tunnels.deliver(self._node, messages)
        self._heard[node] = time.monotonic()
        then(unknown)

    def _way(self, push: FleetPush, descriptor: int) -> None:
        self.tunnels.open(push.node, socket.socket(fileno=descriptor))

    def _serve(self) -> None:
        while True:
            push = self._work.get()
            while self._node in self._fleet.hung or not (self._fleet.head or push.what == "heard"):
                time.sleep(0.02)
            match push.what:
                case "place" if push.placing is not None:
                    node = push.placing.node or self._node
                    self.link.send(FleetTold(id=0, run=push.run, node=node))
                case "nodes":
                    nodes = [
                        FleetNode(name=name, alive=name not in self._fleet.gone)
                        for name in self._fleet.nodes
                    ]
                    self.link.send(FleetTold(id=0, number=push.number, nodes=nodes))
                case "heard":
                    heard = {node: time.monotonic() - at for node, at in self._heard.items()}
                    self.link.send(FleetTold(id=0, number=push.number, heard=heard))
                case "drain" | "undrain":
                    self.link.send(FleetTold(id=0, number=push.number))


def main(words: Sequence[str]) -> None:
    """Serve nodes, `NAME=SOCKET` each, and obey lines on stdin: `cut NAME`, `join NAME`,
    `hang NAME`, `wake NAME`, `lose NAME` (its raylet), `stop head`, `start head`."""
    actors = Actors(dict(word.split("=", 1) for word in words))
    while not all(actor.link.connected for actor in actors.nodes.values()):
        time.sleep(0.02)
    print("connected", flush=True)
    for line in sys.stdin:
        what, name = line.split()
        match what:
            case "cut":
                actors.cut.add(name)
            case "join":
                actors.cut.discard(name)
                actors.gone.discard(name)
            case "hang":
                actors.hung.add(name)
            case "wake":
                actors.hung.discard(name)
                later, actors.later = actors.later, []
                for call in later:
                    call()
            case "lose":
                actors.gone.add(name)
            case "stop" | "start":
                actors.head = what == "start"
        print("done", flush=True)


class Fleet:
    def __init__(self, daemons: Mapping[str, Daemon], actors: subprocess.Popen[str]) -> None:
        self.daemons, self._actors = daemons, actors

    def __getitem__(self, name: str) -> Daemon:
        return self.daemons[name]

    def cut(self, name: str) -> None:
        """Let no call reach a node, or come from it."""
        self.say(f"cut {name}")

    def join(self, name: str) -> None:
        self.say(f"join {name}")

    def end_actors(self) -> None:
        """End the actors of all nodes."""
        self._actors.kill()
        self._actors.wait()

    def say(self, words: str) -> None:
        """Have something happen: see `main`."""
        assert self._actors.stdin is not None
        assert self._actors.stdout is not None
        self._actors.stdin.write(f"{words}\n")
        self._actors.stdin.flush()
        assert self._actors.stdout.readline() == "done\n"


@contextmanager
def fleet(
    directory: Path,
    names: Sequence[str] = ("n1", "n2"),
    *,
    lease: float = 5,
    more: str = "",
    options: Callable[[str], Mapping[str, Any]] = lambda _: {},
) -> Iterator[Fleet]:
    """Run a daemon for each node, until all have an actor. `more`: of the config, from within its
    section `fleet` on; `options`: of the daemon of a node."""
    with ExitStack() as stack:
        daemons = {}
        for name in names:
            (directory / name).mkdir()
            config = CONFIG.format(name=name, lease=lease, more=more)
            daemons[name] = stack.enter_context(
                running(directory / name, config=config, **options(name))
            )
        command = [sys.executable, "-m", "tests.paper_fleet"]
        command += [f"{name}={daemon.socket}" for name, daemon in daemons.items()]
        actors = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        stack.enter_context(actors)
        stack.callback(actors.kill)
        assert actors.stdout is not None
        assert actors.stdout.readline() == "connected\n"
        yield Fleet(daemons, actors)


if __name__ == "__main__":
    main(sys.argv[1:])
