"""The declaration."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ...config_values import PATH, SIZE, Form
from ...core.state.access import Access
from ...core.state.policy import DURATION
from ...core.state.run import Run
from ...feature import Feature, Section
from ...host.clock import wall_clock
from ...protocol.types import FleetPlace, Ship
from .messages import (
    AskSlots,
    DrainNode,
    FetchFiles,
    FleetStatus,
    FleetTold,
    ForgetNode,
    GetFiles,
    OverFleet,
    PutFiles,
    Relay,
    ServeFleet,
    ShareSubscriptions,
    Tend,
)

SHIP = "ship"
"""What it decides about a run."""


_CLUSTER = {"form": Form('"auto" or "HOST:PORT"')}
_NODE = {"form": Form("a name of at most 63 letters, digits, dots, _ and -")}


class FleetConfig(Struct, frozen=True, kw_only=True):
    """The cluster of Ray that this daemon is a node of."""

    address: Annotated[str, Meta(pattern=r"^(auto|[^\s:]+:[0-9]{1,5})$", extra=_CLUSTER)] | None = (
        None
    )
    """`auto`: that of this machine. `None`: it is in no fleet."""
    node: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", extra=_NODE)] | None = (
        None
    )
    """`None`: the name of the host."""
    lease: Annotated[float, Meta(ge=5, le=86400, extra=DURATION)] = 60.0
    keeper: (
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", extra=_NODE)] | None
    ) = None
    """The node that keeps the budgets of users and teams, and shared quotas. `None`: the head's, or
    the one that was known before."""
    share_quotas: bool = False
    """`quotas.trees`, `quotas.trees_per_user` and the slots of groups bound the whole fleet, and
    not each node."""
    token_file: Annotated[str, Meta(pattern=r"^/", extra=PATH)] | None = None
    """The file with the cluster's token, for Ray. `None`: as the daemon's environment says."""
    start: Literal["head", "node"] | None = None
    """The daemon has a process start Ray, and start it again: as the head at `address`, or as a
    node of that. `None`: systemd, or the operator, does."""
    insecure: bool = False
    """Also join a cluster that asks for no token."""
    ship_max: Annotated[int, Meta(ge=64 * 1024, le=1 << 40, extra=SIZE)] = 100 * 1024 * 1024
    """Bytes of the files that one run may be sent with, and bring back."""


AWAY = 10.0
"""Seconds without a word from a node after which its runs are shown as unreachable: two heartbeats
(`node.BEAT`)."""


def _place(run: Run, now: float) -> FleetPlace:
    """Return where a run is that executes on another node, or that another node has granted."""
    remote, grant = run.remote, run.asked.grant
    if remote is not None:
        away = now - remote.heard_at
        shown = (
            remote.node is not None
            and not run.status.terminal
            and (bool(remote.unreached) or away > AWAY)
        )
        return FleetPlace(
            node=remote.node,
            run=remote.id,
            infeasible=remote.infeasible,
            unreachable_since=wall_clock() - timedelta(seconds=away) if shown else None,
        )
    assert grant is not None
    return FleetPlace(
        giver=grant.giver,
        id=f"{grant.giver}/{grant.run}",
        root=grant.root,
        parent=grant.parent,
        depth=grant.depth,
    )


def _notes(run: Run, now: float) -> dict[str, Any]:
    return {"fleet": _place(run, now)}


_OF_FLEET = Access("admin", inside=False, narrowed_by=None, scope="none")
_OF_FILES = Access(narrowed_by="logs", said="'fetch'")

FEATURE = Feature(
    sections=(Section("fleet", FleetConfig, at_start=True),),
    verbs={
        OverFleet: _OF_FLEET,
        FleetStatus: _OF_FLEET,
        ForgetNode: _OF_FLEET,
        DrainNode: _OF_FLEET,
        Relay: _OF_FLEET,
        ServeFleet: _OF_FLEET,
        FleetTold: _OF_FLEET,
        Tend: _OF_FLEET,
        ShareSubscriptions: _OF_FLEET,
        AskSlots: _OF_FLEET,
        PutFiles: Access(leaf=False, narrowed_by="spawn", scope="none"),
        FetchFiles: _OF_FILES,
        GetFiles: _OF_FILES,
    },
    decides={SHIP: Ship},
    notes={"remote": _notes, "lease": _notes},
    elsewhere="deciding.elsewhere",
    alone="this daemon is in no fleet",
    install="ray.installing",
    beside="-shipped",
    part="part",
)
