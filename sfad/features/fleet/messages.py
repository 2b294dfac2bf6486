"""The messages of the fleet: what is asked of its nodes, what their daemons ask each other about
runs that they have granted, and files that are sent with runs."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from ...protocol.requests.base import Reply, Request
from ...protocol.requests.windows import SharedWindows
from ...protocol.types import Placing, RunId, RunInfo, Wanted

PIECE = 1 << 20
"""Bytes of an archive in one message."""
FLEET_VERSION = 1
"""Raised when two nodes would misread each other. They refuse each other then, with both
numbers."""
ACTOR_VERSION = 2
"""Raised when an actor and its daemon would misread each other. The daemon has another actor made
then."""
VERSIONS_DIFFER = "install one version of sfad on both"
"""What nodes say that refuse each other."""


class OverFleet(Request, tag="over_fleet"):
    """Have the requests after this one on the connection answered for all nodes of the fleet, where
    they are about no run, and for the node of the run otherwise. Runs have the names of the fleet,
    NODE/ID, in requests and answers. Answered by `FleetNodes`."""

    repeats = 1


class FleetNodes(Reply, tag="fleet_nodes"):
    node: str
    """That of the daemon."""
    nodes: list[str]


Missing = Literal["raylet", "actor", "daemon"]
"""What a node lacks that is not ready: its part of the Ray cluster, the actor there that passes
messages on, or the daemon."""


class FleetNode(Struct, frozen=True, kw_only=True):
    name: str
    alive: bool = True
    """As Ray tells. It takes up to a minute to notice a machine that hangs."""
    missing: Missing | None = None
    """What the node lacks; `None`: it is ready."""
    since: datetime | None = None
    """When it was heard of last, if that is known."""
    advice: str = ""
    """What to do about what is missing."""
    address: str = ""
    version: str = ""
    """Of sfad; empty if its daemon does not answer."""
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

    here: bool = False
    """Only what the daemon knows without asking: whether it and its actor live."""


class FleetState(Reply, tag="fleet_state"):
    node: str
    address: str
    connected: bool
    """The node's actor is."""
    raylet: bool = True
    """Ray's process of this machine that has started the actor lives."""
    version: str = ""
    """Of sfad."""
    python: str = ""
    ray: str = ""
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


class Relay(Request, tag="relay"):
    """Ask other nodes for the one that asks, as clients outside any run, each its request. Answered
    by `Relayed`."""

    repeats = 1

    asks: dict[str, bytes] = {}
    """Requests as msgpack, by node."""
    within: float = 0.25
    """Seconds that each has."""


class Relayed(Reply, tag="relayed"):
    answers: dict[str, bytes] = {}
    """Replies as msgpack, by node. Others have not answered."""


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
    ray: str = ""
    """Its version."""
    raylet: int = 0
    """The process that has started the actor."""
    descriptors: int = 0


class FleetPush(Reply, tag="fleet_push"):
    """Do something. `way`: pass on what comes through the descriptor, to a node. `place`: reserve
    for a run, but not on `node`, with which it was lost; `free`: no longer. `nodes`: tell all
    nodes. `heard`: tell which actors have answered, without asking. `drain`, `undrain`: place no
    more runs on a node, or again. `keep`: remove the reservations of this node's other runs. `end`:
    another actor has come."""

    what: Literal["way", "place", "free", "nodes", "heard", "keep", "drain", "undrain", "end"]
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
    heard: dict[str, float] = {}
    """Seconds since the actors of other nodes have answered last."""
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


class RunUse(Struct, frozen=True, kw_only=True):
    """`None` is unknown."""

    turns: int | None = None
    messages: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None


class Tended(Reply, tag="tended"):
    stamp: str
    """The taker's boot and clock."""
    runs: list[RunInfo] = []
    """Those that have another status than `seen`, with totals."""
    gone: list[RunId] = []
    """Those that it does not know."""
    used: dict[RunId, RunUse] = {}
    """What the others have used so far, with what is below them."""


# ---- What nodes tell each other for other features


class ShareSubscriptions(Request, tag="share_plans"):
    """Hear what a node knows of subscriptions. Answered by `SharedSubscriptions`."""

    repeats = 1

    plans: list[SharedWindows] = []


class SharedSubscriptions(Reply, tag="shared_plans"):
    """What the keeper knows, of any node."""

    plans: list[SharedWindows] = []


class SlotsWanted(Struct, frozen=True, kw_only=True):
    """What a node has, and wants, of a quota of trees."""

    key: str
    """Of the config."""
    user: str
    """Whose it is; empty: all users'."""
    has: int
    """Without what it gives back."""
    needs: int = 0
    """Trees that wait for more."""
    priority: int = 0
    """Of the first of these."""
    rival: int | None = None
    """As it was told last."""


class AskSlots(Request, tag="ask_slots"):
    """Take back what a node does not need of quotas, and give it what its trees wait for. Answered
    by `GivenSlots`."""

    repeats = 1

    node: str
    number: int
    """Higher than in the node's earlier requests. An earlier one that comes late changes
    nothing."""
    wanted: list[SlotsWanted] = []
    wait: float = 0.0
    """Seconds to wait until there is something to give."""


class SlotsGiven(Struct, frozen=True, kw_only=True):
    key: str
    user: str
    has: int
    """What the node may use."""
    rival: int | None = None
    """The highest priority of what waits for this quota on other nodes."""


class GivenSlots(Reply, tag="given_slots"):
    given: list[SlotsGiven] = []


# ---- Files that are sent with a run to another node, and brought back


class PutFiles(Request, tag="put_files"):
    """Bring a piece of an archive, a gzipped tar, that a later `Spawn` names in `ship`. Needs the
    permission for `spawn`. Answered by `FilesKept`, which says where the next piece begins: without
    `data`, it only asks.

    The daemon removes an archive that no run has named for an hour."""

    repeats = 3

    archive: str
    """32 hexadecimal digits that the client has drawn."""
    size: int
    """Bytes of all files before they are packed; at most `fleet.ship_max`."""
    offset: int = 0
    """Where the piece belongs. If that is not where the next one is expected, nothing is kept of
    it."""
    data: bytes = b""
    """At most 1 MiB."""
    last: bool = False
    """The archive ends with this piece."""


class FilesKept(Reply, tag="files_kept"):
    offset: int
    """Bytes that the daemon has."""
    whole: bool = False
    """It has the last piece."""


class FetchFiles(Request, tag="fetch_files"):
    """Compare the files of a run with what was sent (`ship`), and pack what has changed, on the
    node where the run executes. Needs the permission for `logs`, and the run's own user. Answered
    by `FilesPacked`; `wrong_state` if the run has no such files."""

    repeats = 1
    answered_there = True

    run: str
    patch: bool = False
    """Pack the changed files as they were sent, too."""


class FilesPacked(Reply, tag="files_packed"):
    name: str
    """For `get_files`. The daemon keeps the archive for 15 minutes."""
    size: int
    directory: bytes
    """Where the files came from,"""
    node: str
    """and on which node."""
    asked: str = ""
    """The node whose daemon answers this client."""


class GetFiles(Request, tag="get_files"):
    """Read a piece of what `fetch_files` has packed. Needs what that needs. Answered by
    `FilesPart`."""

    repeats = 1
    answered_there = True

    run: str
    name: str
    offset: int = 0


class FilesPart(Reply, tag="files_part"):
    data: bytes
    """At most 1 MiB; empty at the end."""
