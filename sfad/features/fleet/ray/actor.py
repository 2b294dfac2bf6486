"""A node's actor. Ray starts it again wherever its node is; the daemon does not descend from it."""

import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray

from ..messages import FleetPush, FleetTold
from . import NAMESPACE, actor_name
from .link import Link
from .placing import Places, all_nodes, drain, register
from .tunnels import Message, Tunnels

LOOK, LOOK_MAX = 0.02, 1.0
"""Seconds between looks at reservations that wait: doubled each time while nothing happens."""


class NodeActor:
    """Passes on bytes between the fleet and this node's daemon."""

    def __init__(self, node: str, daemon: str) -> None:
        self._node = node
        self._daemon = daemon
        self._handles: dict[str, Any] = {}
        """Other actors."""
        self._sought: dict[str, list[tuple[list[Message], Callable[[list[str] | None], None]]]] = {}
        """Calls of nodes whose actor is not known yet."""
        self._lock = threading.Lock()
        register(node)
        self._tunnels = Tunnels(daemon, node, self._call)
        self._heard: dict[str, float] = {}
        """When each other actor has answered last."""
        self._link = Link(
            node, daemon, self._way, self._do, self._displaced,
            ray=ray.__version__, raylet=os.getppid(),
        )  # fmt: skip
        self._places = Places(node)
        self._work: queue.Queue[FleetPush | None] = queue.Queue()
        self._own = ray.get_runtime_context().current_actor
        threading.Thread(target=self._serve, name="work", daemon=True).start()
        threading.Thread(target=self._link.serve, name="link", daemon=True).start()

    # ---- called by other actors

    def deliver(self, node: str, messages: list[Message]) -> list[str]:
        return self._tunnels.deliver(node, messages)

    def identity(self) -> dict[str, Any]:
        """Return what tells whether it is of this daemon, and serves it."""
        return {"daemon": self._daemon, "connected": self._link.connected}

    # ---- other actors

    def _call(
        self, node: str, messages: list[Message], then: Callable[[list[str] | None], None]
    ) -> None:
        with self._lock:
            handle = self._handles.get(node)
            if handle is None:
                self._sought.setdefault(node, []).append((messages, then))
                is_first = len(self._sought[node]) == 1
        if handle is not None:
            self._deliver(handle, node, messages, then)
        elif is_first:
            # Ray answers once the cluster's head does: other nodes must not wait for this one
            threading.Thread(target=self._seek, args=[node], name="seek", daemon=True).start()

    def _seek(self, node: str) -> None:
        """Find a node's actor, and make the calls that wait for it, in their order."""
        handle: Any = None
        with suppress(ValueError, ray.exceptions.RayError):
            handle = ray.get_actor(actor_name(node), namespace=NAMESPACE)
        with self._lock:
            calls = self._sought.pop(node)
            if handle is not None:
                self._handles[node] = handle
                for messages, then in calls:
                    self._deliver(handle, node, messages, then)
                return
        for _, then in calls:
            then(None)

    def _deliver(
        self,
        handle: Any,
        node: str,
        messages: list[Message],
        then: Callable[[list[str] | None], None],
    ) -> None:
        try:
            future = handle.deliver.remote(self._node, messages).future()
        except (ValueError, ray.exceptions.RayError):
            self._handles.pop(node, None)
            then(None)
            return

        def done(future: Any) -> None:
            if (error := future.exception()) is not None:
                # one that Ray makes again keeps its handle, which nothing tells without the head
                if not isinstance(error, ray.exceptions.ActorUnavailableError):
                    self._handles.pop(node, None)
                then(None)
            else:
                self._heard[node] = time.monotonic()
                then(future.result())

        future.add_done_callback(done)

    # ---- what the daemon asks for

    def _way(self, push: FleetPush, descriptor: int) -> None:
        self._tunnels.open(push.node, socket.socket(fileno=descriptor))

    def _do(self, push: FleetPush) -> None:
        if push.what == "heard":  # it takes no call of Ray, and some may hang
            now = time.monotonic()
            heard = {node: now - at for node, at in list(self._heard.items())}
            self._link.send(FleetTold(id=0, number=push.number, heard=heard))
        else:
            self._work.put(push)

    def _serve(self) -> None:
        """Do what takes calls of Ray, one after the other."""
        pause = LOOK
        while True:
            try:
                push = self._work.get(timeout=pause if self._places.waiting else None)
                pause = LOOK
            except queue.Empty:
                push, pause = None, min(2 * pause, LOOK_MAX)
            try:
                if push is not None:
                    self._work_on(push)
                for told in self._places.look():
                    self._link.send(told)
            except Exception as error:  # noqa: BLE001 - whatever Ray raises, the next request may succeed
                self._trouble(push, error)

    def _work_on(self, push: FleetPush) -> None:
        match push.what:
            case "place" if push.placing is not None:
                self._places.place(push.run, push.placing, away=push.node)
            case "free":
                self._places.free(push.run)
            case "keep":
                self._places.keep(push.runs)
            case "drain" | "undrain":
                refused = drain(push.node, undo=push.what == "undrain")
                self._link.send(FleetTold(id=0, number=push.number, refused=refused))
            case "nodes":
                self._link.send(FleetTold(id=0, number=push.number, nodes=all_nodes()))

    def _trouble(self, push: FleetPush | None, error: Exception) -> None:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        why = first if isinstance(error, ValueError) else f"Ray: {type(error).__name__}: {first}"
        if push is not None and push.what == "place":
            self._link.send(FleetTold(id=0, run=push.run, refused=why))
        elif push is not None and push.number:
            self._link.send(FleetTold(id=0, number=push.number, refused=why))

    def _displaced(self) -> None:
        """Another actor serves this node's daemon now: end, and do not come back."""
        ray.kill(self._own, no_restart=True)
        os._exit(0)  # where Ray does not know this one any more
