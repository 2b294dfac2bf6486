"""Use that went around the gateway (docs/gateway.md): what a run's stream or session file tells beyond the calls that it saw.

A run that has the gateway can leave it: with an address of its own, a cleared environment, a provider that the gateway does not
know. Then its limits rest on figures that come after the calls.
"""

from dataclasses import dataclass

from ..protocol.types import LimitKind, Reason, Source, Status
from .context import Context
from .limits import NEED_COUNTING
from .run import Run
from .stopping import Stopping
from .vocabulary import EventType, ReasonKind

_FACTOR, _MORE = 2, 20_000
"""So many times the tokens that the gateway saw, and so many more, are no error of counting: a resumed session may tell of older
turns, and a program of calls that were tried twice."""
_WHERE: dict[Source, str] = {"stream": "its output", "session": "its session file"}


@dataclass(frozen=True, slots=True)
class Bypasses:
    _ctx: Context
    _stopping: Stopping

    def look(self, run: Run, at: float) -> None:
        """Compare what the sources tell, because one of them tells more."""
        if not run.asked.gated or run.bypassed or run.status is Status.STOPPING:
            return
        seen = run.account.seen_by_gateway
        for source, where in _WHERE.items():
            use = run.account.sources.get(source)
            tokens = (use.tokens if use is not None else None) or 0
            if tokens > (_FACTOR * seen + _MORE if seen is not None else 0):
                self._tell(run, f"{where} tells of {tokens} tokens, and the gateway saw {seen or 'none'}", at)
                return

    def _tell(self, run: Run, found: str, at: float) -> None:
        terminates = self._ctx.policy.bypass == "terminate" or (self._ctx.policy.bypass == "auto" and _asked_to_bound(run))
        for each in run.lineage:
            each.bypassed = True
            self._ctx.changed(each)
        message = (
            f"it calls its model around the gateway: {found}. So its limits are kept after its calls, not before them; "
            "docs/gateway.md says what leads around it"
        )
        self._ctx.publish(EventType.GATEWAY_BYPASSED, run, message, "high")
        if terminates:
            kind = next((kind for kind in NEED_COUNTING if kind in run.limits), LimitKind.COST)
            why = f"{message}; gateway.bypass ends such a run where a person has set a limit of cost or tokens"
            self._stopping.stop_for(run, Reason(kind=ReasonKind.LIMIT, message=why, limit_kind=kind), at)


def _asked_to_bound(run: Run) -> bool:
    """Return whether a person has typed a limit of money or tokens that binds the run."""
    return any(
        limit.kind in NEED_COUNTING and each.limits[limit.kind].binds
        for each in run.lineage
        for limit in each.asked.limits
        if limit.typed and limit.kind in each.limits
    )
