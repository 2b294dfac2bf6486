"""What the gateway asks the daemon beside what `protocol.requests.gateway` has."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...protocol.requests.base import Reply, Request
from ...protocol.types import RunId


class ServeGateway(Request, tag="serve_gateway"):
    """The gateway begins, or has lost its connection. Answered by `GatewaySettings`."""

    descriptors: int = 0
    """1: the gateway's listening socket travels with this message. The next daemon needs it for a
    gateway that it starts later."""
    reservations: list[str] | None = None
    """On a new connection: the reservations of calls whose end is not answered yet. All others are
    given back."""


class FindCaller(Request, tag="find_caller"):
    """Find the run of a process that calls a model. Answered by `CallerFound`."""

    uid: int | None = None
    cgroup: int | None = None
    """The inode of its cgroup."""
    token: str | None = None
    """What its base URL says, where runs have no cgroup, or are agents within a program."""
    inode: int | None = None
    """Of its socket."""


class WithdrawCall(Request, tag="withdraw_call"):
    """Forget an `AdmitCall`, named by its id, whose caller has hung up. Answered by `Done`."""

    call: int


class SilentCall(Request, tag="silent_call"):
    """Tell that no byte of a call's reply has come for a while, or that its first byte has come
    after that. Answered by `Done`."""

    run: str
    reservation: str
    host: str
    silent_s: float | None = None
    """Seconds since the call went out; `None` once its first byte has come."""


class UnaskedRequest(Request, tag="unasked_request"):
    """Tell of a billable request that is not a model call: the gateway let it pass, or refused it.
    Answered by `Done`."""

    run: str
    time: float
    """Unix time of the request."""
    number: int
    """Tells it from others of the same time."""
    upstream: str
    path: str
    refused: str | None = None
    status: int | None = None
    first_byte_s: float | None = None
    seconds: float | None = None
    error: str | None = None


class RefusedEgress(Request, tag="refused_egress"):
    """Tell that a run was refused a host. Answered by `Done`."""

    run: str
    host: str
    port: int
    why: str


class UpstreamInfo(Struct, frozen=True, kw_only=True):
    url: str
    api: str
    key_env: str | None = None
    key_file: str | None = None
    through: str | None = None
    """The address of the gateway that has its key; `None`: the gateway that is told calls it
    itself."""
    free: bool | Literal["auto"] = "auto"
    """Whether its calls cost nothing; `auto`: those of local models."""


class GatewaySettings(Reply, tag="gateway_settings"):
    upstreams: dict[str, UpstreamInfo]
    ungated: bool = False


class CallerFound(Reply, tag="caller_found"):
    """`upstreams`: those of the caller's tree, which stand beside the gateway's, or replace those
    of the same name. `certificates`: files of those to trust, beside the gateway's. `keyed_only`:
    the caller's user has another gateway, for all upstreams without a key of the operator's."""

    run: RunId
    upstreams: dict[str, UpstreamInfo] = {}
    certificates: list[str] = []
    egress: list[str] = []
    """Hosts that the run reaches through the gateway beside its model."""
    keyed_only: bool = False
    token: str | None = None
    """Names the run to the gateway that has the operator's keys. Only a user's gateway is told."""
