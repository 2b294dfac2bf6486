"""What is wrong with a live run, what waits for a person, and what an ended run has left."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from sfad.protocol.kinds import KINDS
from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.listing import Info, List
from sfad.protocol.texts.units import counted
from sfad.protocol.types import (
    Approval,
    ErrorCode,
    Hold,
    LimitState,
    PersonAwaited,
    RunId,
    RunInfo,
    Status,
)

from .. import output
from ..connecting.connection import Client, DaemonError
from ..features import has
from ..options import limits

# ---- What is wrong with a live run, in words: the worst first


NEAR = 0.8
"""The share of a limit from which it is told, as the default of `limits.nearing` and
`alerts.limit_share`."""


def asked(approval: Approval, most: int | None = None) -> str:
    """Return a call of a tool that an agent asks for: `Bash {"command": "make"} in /src`. `most`:
    characters of its arguments; that more are left out is said."""
    words = " ".join(approval.arguments.split())
    more = 0 if most is None else max(0, len(words) - most)
    if more:
        words = f"{words[:most]}… ({more} characters more: sfactl info)"
    return f"{output.plain(f'{approval.tool} {words}')} in {output.plain(approval.cwd)}"


def troubles(run: RunInfo, now: datetime, limit_share: float = NEAR) -> Iterator[str]:
    """Yield predicates: `cannot reach its model: the API answered 529 six times`."""
    for each in run.approvals:
        yield (
            f"asks for approval of {asked(each, 300)}: "
            f"sfactl approve {run.id} {each.call}, or sfactl deny {run.id} {each.call}"
        )
    if run.waiting is not None:
        yield f"has waited for a person since {awaited_since(run.waiting, now)}"
    if run.api_silence is not None:
        since = output.clock(run.api_silence.since, now)
        yield f"has been {output.plain(run.api_silence.sentence(now))}, since {since}"
    if run.api_trouble is not None:
        yield f"cannot reach its model: {output.plain(run.api_trouble.sentence)}"
    if output.unanswered(run):
        yield (
            "gets no answer: its model has not answered for "
            f"{output.seconds(run.usage.elapsed_s)}, and {run.meter} does not tell whether it "
            f"tries again (what it prints: sfactl logs {run.id} --stderr)"
        )
    if run.repeating is not None:
        yield f"repeats itself: {output.plain(run.repeating.sentence)}"
    if run.cut is not None:
        yield f"has an unfinished answer: {output.plain(run.cut)}"
    if run.status is not Status.STOPPING:  # else its reason tells the limit that counted
        for state in near(run, limit_share):
            place = "over" if share(state) > 1 else "near"
            yield f"is {place} its limit: {state.kind} {of(state)}"


def awaited_since(waiting: PersonAwaited, now: datetime) -> str:
    """Return since when a run waits for a person, and what for: `14:02:10: Proceed? (y/n)`."""
    words = waiting.words or next(reversed(waiting.screen), "")
    since = output.clock(waiting.since, now)
    return f"{since}: {output.plain(words)}" if words else since


def near(run: RunInfo, limit_share: float = NEAR) -> list[LimitState]:
    """Return the limits that act of which `limit_share` or more is used, the nearest first."""
    shares = {state.kind: share(state) for state in run.limits}
    found = [
        state
        for state in run.limits
        if KINDS[state.kind].acts and shares[state.kind] >= limit_share
    ]
    return sorted(found, key=lambda state: -shares[state.kind])


def share(state: LimitState) -> float:
    return state.used / state.threshold if state.used is not None and state.threshold else 0.0


def of(state: LimitState) -> str:
    """Return `4.10 of 5.00 USD (82 %)`. The limit's use is known."""
    numbers = limits.share(state.kind, state.used or 0.0, state.threshold)
    return f"{numbers} ({output.percent(share(state))})"


# ---- What waits for a person: live runs that do not go on by themselves, each with the command
# that helps


class Waiting(Struct, frozen=True, kw_only=True):
    what: str
    """`person`, `approval`, `paused`, `unreachable`, `queued`, `after`, `refused` or `unlanded`."""
    runs: Sequence[RunId]
    message: str
    command: str


def of_live(runs: Sequence[RunInfo], now: datetime) -> Iterator[Waiting]:
    """Yield what keeps these live runs from going on, but for the queue, and what ends by itself.
    A pause is told once for a tree that stands still."""
    for run in runs:
        who = f"{run.id} ({output.plain(run.name)})"
        held = [hold for hold in run.holds if hold.blocks == "processes"]
        if held:
            yield from (
                _paused(run, who, hold, now)
                for hold in held
                if hold.kind not in ("plan", "ancestor")
            )
        elif run.approvals:
            first = run.approvals[0].call
            yield Waiting(
                what="approval",
                runs=[run.id],
                message=f"{who} {next(iter(troubles(run, now)))}",
                command=f"sfactl approve {run.id} {first}, or sfactl deny {run.id} {first}",
            )
        elif run.waiting is not None:
            yield Waiting(
                what="person",
                runs=[run.id],
                message=f"{who} {next(iter(troubles(run, now)))}",
                command=f"sfactl attach {run.id}",
            )
        elif run.api_silence is not None or run.api_trouble is not None or output.unanswered(run):
            yield Waiting(
                what="unreachable",
                runs=[run.id],
                message=f"{who} {next(iter(troubles(run, now)))}",
                command=f"sfactl logs {run.id} --stderr, or sfactl stop {run.id}",
            )


def _paused(run: RunInfo, who: str, hold: Hold, now: datetime) -> Waiting:
    asks, words = hold.kind == "approval", output.plain(hold.words)
    left = f" within {output.until(hold.until, now)}" if asks and hold.until is not None else ""
    return Waiting(
        what="approval" if asks else "paused",
        runs=[run.id],
        message=f"{who} {f'waits for approval{left}' if asks else f'is {run.status}'}: {words}",
        command=output.plain(hold.command or f"sfactl why {run.id}"),
    )


def of_queue(client: Client, runs: Sequence[RunInfo], now: datetime) -> Iterator[Waiting]:
    """Yield what the runs wait for that are queued: for other runs, or for a slot."""
    yield from _of_awaiting([run for run in runs if _held_by(run, "after")])
    waiting = [run for run in runs if _held_by(run, "slot", "group")]
    if not waiting:
        return
    try:
        first = client.call(Info(id=0, run=waiting[0].id), RunReply).run
    except DaemonError as error:  # it may have ended, or the caller may not ask
        if error.error not in (ErrorCode.NO_SUCH_RUN, ErrorCode.NOT_PERMITTED):
            raise
        return
    hold = _held_by(first, "slot", "group")
    if hold is not None:
        yield Waiting(
            what="queued",
            runs=[run.id for run in waiting],
            message=(
                f"{counted(len(waiting), 'tree waits', 'trees wait')} for "
                f"a slot: {output.why_held(hold, now)}"
            ),
            command=f"sfactl why {first.id}",
        )


def _held_by(run: RunInfo, *kinds: str) -> Hold | None:
    return next((hold for hold in run.holds if hold.kind in kinds), None)


SHOWN = 5
"""Runs that wait for others that one line names."""


def _of_awaiting(runs: Sequence[RunInfo]) -> Iterator[Waiting]:
    if not runs:
        return
    named = "; ".join(
        f"{run.id} ({output.plain(run.name)}) after {awaited(run)}" for run in runs[:SHOWN]
    )
    more = f"; and {len(runs) - SHOWN} more" if len(runs) > SHOWN else ""
    message = f"{counted(len(runs), 'run waits', 'runs wait')} for others: {named}{more}"
    yield Waiting(
        what="after",
        runs=[run.id for run in runs],
        message=message,
        command=f"sfactl why {runs[0].id}",
    )


def awaited(run: RunInfo) -> str:
    """Return the runs for whose ends a run waits, as in `--after`; empty if there are none."""
    return ", ".join(after.words for after in run.after)


def of_refused(by_status: dict[Status, int]) -> Iterator[Waiting]:
    """Yield the starts that were refused."""
    refused = {status: count for status, count in by_status.items() if status.rejected}
    if refused:
        rules = ", ".join(
            f"{status.removeprefix('rejected_')} {count}" for status, count in refused.items()
        )
        options = " ".join(f"--status {status}" for status in refused)
        total = sum(refused.values())
        message = f"{counted(total, 'start was', 'starts were')} refused ({rules})"
        yield Waiting(what="refused", runs=[], message=message, command=f"sfactl list {options}")


# ---- What an ended run has left in its worktree


def of_unlanded(client: Client, wanted: List) -> Iterator[Waiting]:
    """Yield what the newest ended runs that `wanted` matches have to land, if their worktrees are
    here."""
    if not has("worktrees"):
        return
    from ..worktrees import landing

    for runs, message, command in landing.to_land(client, wanted):
        yield Waiting(what="unlanded", runs=runs, message=message, command=command)


def unlanded(run: RunInfo) -> str | None:
    """Return what an ended run has left in its worktree, and how it lands, in a line; `None` if
    there is nothing, or it is not this user's."""
    if run.worktree is None:
        return None
    from ..worktrees import landing  # few runs have a worktree

    return landing.unlanded(run)


def left_for_git(run: RunInfo) -> str | None:
    """Return a warning if an ended isolated run could write to the `.git` of its directory, because
    the person's next git there executes what that names; `None` if there is none, or it is not this
    user's. A run with a worktree has git files of its own (`sfad.features.worktrees.private`)."""
    if (
        run.isolation is None
        or run.worktree is not None
        or run.fleet is not None
        or run.started_at is None
        or not run.status.terminal
        or run.user != output.own_user()
        or not os.path.lexists(f"{run.cwd}/.git")
    ):
        return None
    git = output.plain(f"{run.cwd}/.git")
    return f"it could write to {git}: look at config and hooks there before you type git"


def left_behind(run: RunInfo) -> list[str]:
    """Return what a person has to know of the files that an ended run has left, in lines."""
    return [words for words in (unlanded(run), left_for_git(run)) if words is not None]


def unlanded_json(run: RunInfo) -> dict[str, object]:
    """Return what an ended run has left in its worktree, for JSON."""
    if run.worktree is None:
        return {}
    from ..worktrees import landing

    return landing.unlanded_json(run)
