"""Use that went around the gateway (docs/gateway.md): what a run's stream or session file tells beyond the calls that it saw, and
connections of an agent program to its model where no call has come through.

A run that has the gateway can leave it: with an address of its own, a cleared environment, a provider that the gateway does not
know. Then its limits rest on figures that come after the calls.
"""

from dataclasses import dataclass

from ..protocol.types import LimitKind, Reason, Source, Status
from . import events as e
from .context import Context
from .limits import NEED_COUNTING
from .run import Run
from .stopping import Stopping
from .tree import typed_bounds
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
        for source, where in _WHERE.items():
            use = run.account.sources.get(source)
            tokens = (use.tokens if use is not None else None) or 0
            if tokens and _may_go_around(run, source):
                seen = _seen(run)
                if tokens > (_FACTOR * seen + _MORE if seen is not None else 0):
                    self._tell(run, source, f"{where} tells of {tokens} tokens, and the gateway saw {seen or 'none'}", at)
                    return

    def model_reached(self, run: Run, ev: e.ModelReached) -> None:
        """Take a connection for a call if the gateway has seen none of the run's own: agents call their model first of all."""
        if _may_go_around(run, "connection") and run.account.seen_by_gateway is None:
            found = f"'{ev.program}' runs in it, it has a connection to {ev.api}, and no call of it has come through the gateway"
            self._tell(run, "connection", found, ev.at)

    def _tell(self, run: Run, cause: str, found: str, at: float) -> None:
        terminates = self._ctx.policy.bypass == "terminate" or (self._ctx.policy.bypass == "auto" and any(typed_bounds(run)))
        for each in run.lineage:
            each.bypassed.add(cause if each is run else "below")
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


def _may_go_around(run: Run, cause: str) -> bool:
    """Return whether this is not known of the run yet."""
    return run.asked.gated and cause not in run.bypassed and run.status is not Status.STOPPING


def _seen(run: Run) -> int | None:
    """Return the tokens of the run's calls that the gateway saw; `None` if there was none. What runs below it use is part of that,
    because a run's output holds what a shimmed program in its script prints."""
    seen, below = run.account.seen_by_gateway, run.account.below.get(LimitKind.TOKENS, 0)
    return None if seen is None and not below else (seen or 0) + below
