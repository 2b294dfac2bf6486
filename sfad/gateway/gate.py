"""What the gateway asks of the daemon about each call, and what it tells after it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..protocol.egress import Destination
from ..protocol.types import Tokens
from .apis import ToolUse
from .callers import Caller
from .upstreams import Upstream


class CallRefusedError(Exception):
    """The daemon refuses a caller or a call; the text says why and what to do."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        """`retry_after`: seconds after which a call may be asked for again."""
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Placed:
    """The run that a caller is in."""

    run: str
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    """What the setups of the run's tree say, beside the gateway's upstreams, or instead of those of the same name."""
    certificates: Sequence[str] = ()
    """Files of certificates to trust, beside those of the gateway's environment."""
    egress: tuple[Destination, ...] = ()
    """What the run reaches beside its model."""
    keyed_only: bool = False
    """It may be led to upstreams with a key of the operator's only."""
    token: str | None = None
    """Names the run to the gateway that has the operator's keys."""


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call before it is made."""

    run: str
    upstream: str
    model: str
    input_tokens: int
    """Estimated."""
    more_input: int
    """Tokens that the input may have beyond that."""
    caches: bool
    max_output: int
    fixed: bool
    """The maximum cannot be lowered."""
    choices: int
    factor: float
    """What its tier multiplies all prices by."""
    long_cache: bool
    """What it writes to a cache is kept for an hour."""
    fees_usd: float
    """What the provider's tools may cost."""
    streams: bool
    others: tuple[str, ...]
    """Models that the provider may ask for it."""
    api: str
    """The format of its upstream."""


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    reservation: str
    max_output: int | None = None
    """What the call's maximum must be lowered to; `None` if it stays."""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call that has ended, or was broken off."""

    run: str
    model: str
    reservation: str
    status: int | None
    """Of HTTP; `None` if no reply came."""
    tokens: Tokens | None
    """`None`: the reply could not be read, so what was reserved counts."""
    partial: bool
    """The provider has not told its final figures, so it may have been more."""
    sure: Tokens | None
    """What it has used at least, where `tokens` may be too much."""
    tools: tuple[ToolUse, ...]
    factor: float
    long_cached: int
    """Tokens written to a cache for an hour."""
    fees_usd: float
    others: dict[str, Tokens]
    """What other models have used for it, by their names."""
    first_byte_s: float | None
    seconds: float
    error: str | None
    cut: bool
    """The reply ended at a maximum that the gateway had set."""
    failed: bool
    """The upstream did not answer, or answered with an error, or its key cannot be read."""
    api: str
    """The format of its upstream."""


@dataclass(frozen=True, slots=True)
class Silent:
    """A call whose reply has not begun."""

    run: str
    reservation: str
    host: str
    seconds: float | None
    """Since it went out; `None` once the first byte has come."""


@dataclass(frozen=True, slots=True)
class Unasked:
    """A request that costs money and is no call of a model. It passed, or was refused, without being asked for."""

    run: str
    time: float
    """Unix time."""
    upstream: str
    path: str
    refused: str | None = None
    status: int | None = None
    first_byte_s: float | None = None
    seconds: float | None = None
    error: str | None = None


class Gate(Protocol):
    """The daemon."""

    async def place(self, caller: Caller | None, token: str | None) -> Placed:
        """Return the run of a caller. Raises `CallRefusedError`."""

    async def admit(self, asked: AskedCall) -> AdmittedCall:
        """Wait until the call may be made. Raises `CallRefusedError`. If the caller hangs up, this is cancelled."""

    def ended(self, call: CallEnded) -> None:
        """Tell what a call has used."""

    def passed(self, call: CallEnded) -> None:
        """Note what a call has used by now, in case this process is killed."""

    def silent(self, call: Silent) -> None:
        """Tell that a call gets no answer, or gets one after that was told."""

    def unasked(self, request: Unasked) -> None:
        """Have a request recorded that was not asked for."""

    def egress_refused(self, run: str, host: str, port: int, why: str) -> None:
        """Tell that a run may not reach a host."""
