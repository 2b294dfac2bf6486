"""How the nodes are: ready, or what is missing.

A node is ready if its daemon has answered just now, through its actor, on its own raylet. Nothing
of that is asked of Ray, which notices late; Ray tells only what it has: machines, resources,
labels. So the answer takes as long as a question to all daemons, also while the cluster's head
stands still."""

import platform
from contextlib import suppress

import trio
from msgspec.structs import replace

from ... import __version__
from .messages import (
    VERSIONS_DIFFER,
    FleetNode,
    FleetState,
    FleetStatus,
    FleetTold,
    Missing,
)
from .node import ACTOR, Fleet
from .nodes import Nodes
from .process import FleetProcess
from .ray import NO_RAYLET

ADVICE: dict[Missing, str] = {
    "raylet": "its part of Ray is gone; on it: systemctl restart sfad-ray, or start Ray there",
    "actor": "its machine or network is gone, or its actor hangs; on it: sfactl fleet status",
    "daemon": "its daemon is dead or hangs; on it: systemctl restart sfad, or sfad serve",
}
_MAKING = "its actor is being made; that takes some seconds"
NO_DAEMON = "the daemon of node"
"""How the words of an actor begin whose daemon does not take connections."""


class Health:
    def __init__(self, fleet: Fleet, nodes: Nodes, process: FleetProcess) -> None:
        self._fleet, self._nodes, self._process = fleet, nodes, process
        self._of_ray: dict[str, FleetNode] = {}
        """What Ray has told last."""

    def here(self) -> FleetState:
        """Return what this daemon knows of its own node."""
        fleet = self._fleet
        actor = fleet.actor
        return FleetState(
            id=0,
            node=fleet.node,
            address="",
            connected=fleet.is_connected,
            raylet=fleet.raylet_lives,
            trouble=self._process.trouble,
            version=__version__,
            python=platform.python_version(),
            ray=actor.ray if actor is not None else "",
        )

    async def look(self) -> tuple[list[FleetNode], str | None]:
        """Return how all known nodes are, and why that is not known of some. Raise `OSError` if
        this daemon is in no fleet."""
        began = trio.current_time()
        fresh = trouble = None

        async def ask_ray() -> None:
            nonlocal fresh, trouble
            try:
                with trio.fail_after(self._fleet.pace.patience(ACTOR)):
                    told = await self._fleet.told_by_actor("nodes")
                self._of_ray = {node.name: node for node in told.nodes}
                self._nodes.learn(self._of_ray)
                fresh = True
            except trio.TooSlowError:
                trouble = "Ray does not answer here: its head, or the actor of this node, hangs"
            except OSError as error:
                trouble = self._process.trouble or str(error)

        await self._nodes.look()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_ray)
            states, failed = await self._nodes.each(
                lambda _: FleetStatus(id=0, here=True), FleetState
            )
        # an actor that has just not told does so at once, or hangs
        within = self._fleet.pace.patience(ACTOR)
        heard = await self._heard(within) if failed and self._fleet.is_connected else {}
        asked = trio.current_time() - began
        found = []
        for name in self._nodes.names:
            node = self._of_ray.get(name, FleetNode(name=name, alive=False))
            if (state := states.get(name)) is not None:
                found.append(_of_daemon(node, state, told=bool(fresh)))
            else:
                why = failed.get(name, "")
                actor = heard.get(name, asked) < asked
                found.append(self._without_daemon(node, why, told=bool(fresh), actor=actor))
        return found, trouble

    async def _heard(self, within: float) -> dict[str, float]:
        told = FleetTold(id=0)
        with trio.move_on_after(within):
            with suppress(OSError):  # then nothing is known of them
                told = await self._fleet.told_by_actor("heard")
        return told.heard

    def _without_daemon(self, node: FleetNode, why: str, *, told: bool, actor: bool) -> FleetNode:
        """Return a node whose daemon has not answered. `told`: Ray has told of it just now;
        `actor`: its actor has answered since it was asked."""
        if VERSIONS_DIFFER in why:
            return replace(node, refused=why)
        since = self._nodes.answered_at(node.name)
        if not self._fleet.is_connected:
            return replace(node, since=since)
        missing: Missing = "actor"
        if actor or why.startswith(NO_DAEMON):
            missing = "daemon"
        elif told and not node.alive:
            missing = "raylet"
        return replace(node, missing=missing, since=since, advice=ADVICE[missing])


def _of_daemon(node: FleetNode, state: FleetState, *, told: bool) -> FleetNode:
    """Return a node as its daemon tells of it."""
    missing: Missing | None = None
    trouble = state.trouble or ""
    if trouble.startswith(NO_RAYLET) or (state.connected and told and not node.alive):
        missing = "raylet"
    elif not state.connected:
        missing, trouble = "actor", trouble or _MAKING
    elif not state.raylet:
        missing = "raylet"
    return replace(
        node,
        version=state.version,
        python=state.python,
        ray=state.ray,
        missing=missing,
        advice=trouble or ADVICE[missing] if missing is not None else "",
    )
