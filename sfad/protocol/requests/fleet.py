"""The fleet: its nodes, and what their daemons ask each other about the runs that they have
granted."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ..types import Placing, RunId, RunInfo, Wanted
from .base import Reply, Request
from .subscriptions import Provider, SeenWindow

FLEET_VERSION = 1
"""Raised when two nodes would misread each other. They refuse each other then, with both
numbers."""


class FleetNode(Struct, frozen=True, kw_only=True):
    name: str
    alive: bool = True
    """As Ray tells. It takes up to a minute to notice a machine that hangs."""
    address: str = ""
    version: str = ""
    """Of sfad; empty if the node does not answer."""
    python: str = ""
    ray: str = ""
    refused: str | None = None
    """Why this node does not work with it."""
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    drained: bool = False
    head: bool = False


class FleetStatus(Request, tag="fleet_status"):
    """Return what is known of the fleet. Answered by `FleetState`."""

    repeats = 1


class FleetState(Reply, tag="fleet_state"):
    node: str
    address: str
    connected: bool
    """The node's actor is."""
    trouble: str | None = None
    nodes: list[FleetNode] = []
    granted: dict[str, int] = {}
    """Live runs that this node has given, by node."""
    taken: dict[str, int] = {}
    """Live runs that this node was given."""
    keeper: str | None = None
    """The node that keeps the budgets; `None` where that is not known yet."""
    keeper_trouble: str | None = None
    """Why it has not answered."""
    unreachable: dict[str, float] = {}
    """Seconds since nodes with live runs of this one were heard of, where that is long."""


class ForgetNode(Request, tag="forget_node"):
    """Give up all runs of this node on another one, which will not come back. Answered by
    `Forgotten`."""

    node: str


class DrainNode(Request, tag="drain_node"):
    """Place no more runs on a node, or with `undo` place runs there again. Runs that are there go
    on. Answered by `Done`."""

    repeats = 1

    node: str
    undo: bool = False


class Forgotten(Reply, tag="forgotten"):
    runs: list[RunId]


# ---- The node's actor, on one connection to its daemon


class ServeFleet(Request, tag="serve_fleet"):
    """The node's actor begins, or has lost its connection. What is pushed to it bears this
    request's id. An actor that was connected before is told to end. Answered by `Done`, then by
    `FleetPush`."""

    node: str
    version: int
    descriptors: int = 0


class FleetPush(Reply, tag="fleet_push"):
    """Do something. `way`: pass on what comes through the descriptor, to a node. `place`: reserve
    for a run, but not on `node`, with which it was lost; `free`: no longer. `nodes`: tell all
    nodes. `drain`, `undrain`: place no more runs on a node, or again. `keep`: remove the
    reservations of this node's other runs. `end`: another actor has come."""

    what: Literal["way", "place", "free", "nodes", "keep", "drain", "undrain", "end"]
    number: int = 0
    node: str = ""
    run: RunId = ""
    placing: Placing | None = None
    runs: list[RunId] = []
    descriptors: int = 0


class FleetTold(Request, tag="fleet_told"):
    """The answer to a push. Answered by `Done`."""

    number: int = 0
    run: RunId = ""
    node: str | None = None
    """Where the run has room."""
    waits: str | None = None
    """Why it has none."""
    infeasible: bool = False
    refused: str | None = None
    """Why it cannot be placed."""
    nodes: list[FleetNode] = []


# ---- Between the daemons of two nodes


class Tend(Request, tag="tend"):
    """What a giver wants of runs that it has granted, by their ids here. Answered by `Tended`: at
    once if the taker can tell what is not in `seen`, else when it can, or after `wait` seconds. A
    later `Tend` has an earlier one answered at once."""

    giver: str
    echo: str = ""
    """The taker's `stamp`, as it was told last: the leases of these runs begin then."""
    runs: dict[RunId, Wanted] = {}
    seen: dict[RunId, str] = {}
    """Statuses, as they were told last."""
    wait: float = 0.0


class Tended(Reply, tag="tended"):
    stamp: str
    """The taker's boot and clock."""
    runs: list[RunInfo] = []
    """Those that have another status than `seen`, with totals."""
    gone: list[RunId] = []
    """Those that it does not know."""


# ---- What nodes know of subscriptions


class SharedSubscription(Struct, frozen=True, kw_only=True):
    """What a node has heard of a subscription."""

    provider: Provider
    uid: int | None = None
    """The user to whom it belongs; `None`: the operator."""
    login: str = ""
    """A hash of a credential."""
    organization: str | None = None
    plan_type: str | None = None
    status: str | None = None
    heard_at: float
    """Unix time."""
    windows: list[SeenWindow] = []


class ShareSubscriptions(Request, tag="share_plans"):
    """Hear what a node knows of subscriptions. Answered by `SharedSubscriptions`."""

    plans: list[SharedSubscription] = []


class SharedSubscriptions(Reply, tag="shared_plans"):
    """What the keeper knows, of any node."""

    plans: list[SharedSubscription] = []
