"""What the gateway asks of the daemon about each call, and what it tells after it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..protocol.egress import Destination
from ..protocol.requests.gateway import AdmitCall, CallAdmitted, EndCall, SilentCall, UnaskedCall
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


class Gate(Protocol):
    """The daemon. It takes messages of the protocol without an `id`, which is the connection's to give."""

    async def place(self, caller: Caller | None, token: str | None) -> Placed:
        """Return the run of a caller. Raises `CallRefusedError`."""

    async def admit(self, asked: AdmitCall) -> CallAdmitted:
        """Wait until the call may be made: the answer has a reservation. Raises `CallRefusedError`. If the caller hangs up, this is
        cancelled."""

    def ended(self, call: EndCall) -> None:
        """Tell what a call has used."""

    def passed(self, call: EndCall) -> None:
        """Note what a call has used by now, in case this process is killed."""

    def silent(self, call: SilentCall) -> None:
        """Tell that a call gets no answer, or gets one after that was told."""

    def unasked(self, request: UnaskedCall) -> None:
        """Have a request recorded that was not asked for."""

    def egress_refused(self, run: str, host: str, port: int, why: str) -> None:
        """Tell that a run may not reach a host."""
