"""`sfactl why RUN`

One sentence: which rule refused the run, which limit or signal ended it, what a paused one waits for, or what bounds it while
it runs.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sfad.protocol.limits import format_amount, format_limit
from sfad.protocol.messages import Info, RunReply
from sfad.protocol.types import Action, LimitKind, LimitState, Reason, RunInfo, Status

from .. import output
from ..connection import connect
from ..exits import Exit
from ..limits import REFUSED, share
from ..options import COMMON, RUN, Parameter

PARAMETERS: tuple[Parameter, ...] = (*COMMON, RUN)


def main(*, run: str, socket: str | None = None, json: bool = False) -> int:
    """Says why."""
    with connect(socket) as client:
        found = client.call(Info(id=client.next_id(), run=run), RunReply).run
    if json:
        output.print_json({"id": found.id, "status": found.status, "why": sentence(found), "reason": found.reason})
    else:
        print(sentence(found))
    return Exit.DONE


def sentence(run: RunInfo, now: datetime | None = None) -> str:
    """The answer, with the numbers."""
    who = f"{run.id} ({output.plain(run.name)})"
    if run.status.rejected:
        return f"{who} was refused by the {run.status.value.removeprefix('rejected_')} rule: {_message(run.reason)}"
    if run.status is Status.COMPLETED:
        return f"{who} completed: its main process exited with 0 after {output.seconds(run.usage.elapsed_s)}{_aside(run)}"
    if run.status.terminal:
        return f"{who} ended as {run.status.value}: {_message(run.reason)}{_numbers(run)}"
    if run.status is Status.PAUSED:
        return f"{who} is paused: {_waiting(run, now or datetime.now(UTC))}"
    return f"{who} is {run.status.value}{_stopping(run)}; {_bounds(run, now or datetime.now(UTC))}"


def _message(reason: Reason | None) -> str:
    return output.plain(reason.message) if reason else "no reason was recorded"


def _aside(run: RunInfo) -> str:
    return f" ({_message(run.reason)})" if run.reason and run.reason.kind != "exit" else ""


def _numbers(run: RunInfo) -> str:
    """What the message of a breach does not say: by how much, and whose use was counted."""
    reason = run.reason
    if reason is None or reason.limit_kind not in set(LimitKind) or not reason.exceeded_by:
        return ""
    kind = LimitKind(reason.limit_kind)
    scope = next((state.scope for state in run.limits if state.kind is kind), "run")
    counted = "; what its descendants used counts too" if scope == "tree" else ""
    over = "that would have been " if reason.message.startswith(REFUSED) else ""
    return f" ({over}{format_amount(kind, reason.exceeded_by)} over{counted})"


def _stopping(run: RunInfo) -> str:
    return f": {_message(run.reason)}{_numbers(run)}" if run.reason else ""


def _waiting(run: RunInfo, now: datetime) -> str:
    """What a paused run waits for."""
    held = [state for state in run.limits if state.action in _ACTIONS and _exceeded(state)]
    if run.reason is None and not held:
        return (
            "none of its limits is exceeded, so it was paused by hand, with a run above it, or for a reservation that was refused; "
            f"sfactl resume {run.id} lets it go on"
        )
    told = _message(run.reason) + _numbers(run) if run.reason else ", ".join(_breach(state) for state in held)
    kinds = [run.reason.limit_kind] if run.reason and run.reason.limit_kind else [state.kind for state in held]
    room = " ".join(f"--limit {kind}=N" for kind in kinds)
    if any(state.action is Action.REQUEST_INCREASE for state in held if state.kind in kinds):
        until = f" until {run.deadline.isoformat()}, in {_left(run.deadline, now)}" if run.deadline else ""
        return (
            f"{told}; it waits for approval{until}: sfactl approve {run.id} [{room}], or sfactl deny {run.id}. "
            "Unanswered for limits.approval_timeout, it is terminated"
        )
    return f"{told}; it goes on with: sfactl resume {run.id} [{room}]"


_ACTIONS = (Action.PAUSE, Action.REQUEST_INCREASE)


def _exceeded(state: LimitState) -> bool:
    return state.used is not None and (
        state.used >= state.threshold if state.kind is LimitKind.TIME else state.used > state.threshold
    )


def _breach(state: LimitState) -> str:
    used = share(state.kind, state.used, state.threshold)
    over = format_amount(state.kind, (state.used or 0) - state.threshold)
    counted = ", its descendants' use included" if state.scope == "tree" else ""
    return f"its {state.kind} limit, set by {output.plain(state.source)}, is exceeded: used {used}, {over} over{counted}"


def _left(moment: datetime, now: datetime) -> str:
    return output.seconds((moment - now).total_seconds())


def _bounds(run: RunInfo, now: datetime) -> str:
    limits = ", ".join(f"{format_limit(state)} (from {output.plain(state.source)}{_whether(state)})" for state in run.limits)
    left = f", {_left(run.deadline, now)} left until its deadline" if run.deadline else ""
    return f"it is bounded by {limits or 'no limit of its own'}{left}"


def _whether(state: LimitState) -> str:
    return ", NOT ENFORCEABLE" if state.enforced_by == "nothing" else ""
