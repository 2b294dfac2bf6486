"""`sfactl why RUN`

One sentence: which rule refused the run, which limit or signal ended it, or what bounds it while it runs.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sfad.protocol.messages import Info, RunReply
from sfad.protocol.types import Reason, RunInfo, Status

from .. import output
from ..client import connect
from ..exits import Exit
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
        return f"{who} ended as {run.status.value}: {_message(run.reason)}{_numbers(run.reason)}"
    return f"{who} is {run.status.value}{_stopping(run)}; {_bounds(run, now or datetime.now(UTC))}"


def _message(reason: Reason | None) -> str:
    return output.plain(reason.message) if reason else "no reason was recorded"


def _aside(run: RunInfo) -> str:
    return f" ({_message(run.reason)})" if run.reason and run.reason.kind != "exit" else ""


def _numbers(reason: Reason | None) -> str:
    if reason is None or reason.limit_kind is None or reason.threshold is None or reason.used is None:
        return ""
    over = "" if not reason.exceeded_by else f", {reason.exceeded_by:g} over"
    return f" ({reason.limit_kind}: used {reason.used:g} of {reason.threshold:g}{over})"


def _stopping(run: RunInfo) -> str:
    return f" ({_message(run.reason)})" if run.reason else ""


def _bounds(run: RunInfo, now: datetime) -> str:
    limits = ", ".join(f"{x.kind} {x.threshold:g} from {x.source} ({x.action})" for x in run.limits)
    left = f", {output.seconds((run.deadline - now).total_seconds())} left until its deadline" if run.deadline else ""
    return f"it is bounded by {limits or 'no limit of its own'}{left}"
