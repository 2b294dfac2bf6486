"""What each method asks of the daemon, and what it makes of the reply. No I/O: the blocking and the
trio form carry the same calls out, each in its way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sfad.protocol.requests.base import Done, Reply, Request, RunReply
from sfad.protocol.requests.daemon import (
    Change,
    DaemonInfo,
    DaemonStatus,
    Prune,
    Pruned,
    Reload,
    Reloaded,
)
from sfad.protocol.requests.following import EventPush, OutputPart, ReadOutput, Wait
from sfad.protocol.requests.listing import Info, List, RunList
from sfad.protocol.requests.records import (
    CallPage,
    EventPage,
    Events,
    ListCalls,
    Result,
    ResultText,
)
from sfad.protocol.requests.starting import AgentInfo, AgentList, Agents, Recall, Recalled, Spawn
from sfad.protocol.requests.starting import Refused as StartRefused
from sfad.protocol.requests.steering import (
    Approve,
    ChangeLimits,
    Deny,
    Pause,
    Resume,
    Send,
    Signal,
    Stop,
    Stopped,
)
from sfad.protocol.requests.summary import By, Summarise, Summarised, Summary
from sfad.protocol.requests.windows import (
    ListSubscriptions,
    SubscriptionInfo,
    SubscriptionList,
)
from sfad.protocol.types import (
    SEVERITIES,
    CallInfo,
    Checks,
    ErrorCode,
    Event,
    Reason,
    RunId,
    RunInfo,
    Severity,
    Status,
    Usage,
)

from .. import environment, exits
from ..errors import Refused, RequestFailed, RunFailed, of_quit
from ..options import spawn as spawn_options
from .options import Limits, limits_of

R = TypeVar("R")
Stream = Literal["stdout", "stderr"]

PAGE = 500
"""Events or runs in one reply."""
SUMMARISED = 12 * 3600.0
"""Seconds that are summarised where no time is named, as by the command."""
LOOK = 0.2
"""Seconds between two looks at an output that is followed."""
MAX_AGAIN = 20
"""Times in a row that events are asked for again."""
ENDS = frozenset({"run_completed", "run_failed", "run_timeout", "run_cancelled", "run_lost"})


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A request, the reply that is expected, and what is made of it."""

    request: Request
    expected: type[Reply]
    result: Callable[[Any], R]


class Outcome(Struct, frozen=True):
    """How a run has ended."""

    run: RunInfo
    """The run as it ended."""

    @property
    def ok(self) -> bool:
        """Whether it completed."""
        return self.run.status is Status.COMPLETED

    @property
    def status(self) -> Status:
        return self.run.status

    @property
    def reason(self) -> Reason | None:
        """Why it ended so; `None` for `completed`."""
        return self.run.reason

    @property
    def exit_code(self) -> int:
        """The code with which `sfactl run` would exit (docs/states.md#exit-codes)."""
        return exits.of_run(self.run)

    @property
    def usage(self) -> Usage:
        """What it used itself, without its descendants."""
        return self.run.usage

    @property
    def cost_usd(self) -> float | None:
        """What it and its descendants cost, as far as that is known."""
        return self.run.in_all.cost_usd

    @property
    def tokens(self) -> int | None:
        """The tokens of it and its descendants, as far as they are known."""
        return self.run.in_all.tokens

    def check(self) -> Outcome:
        """Return the outcome of a run that completed. Raise `RunFailed` for any other."""
        if not self.ok:
            raise RunFailed(self.run)
        return self


def _of_run(reply: RunReply) -> RunInfo:
    return reply.run


def _of_nothing(_reply: Done) -> None:
    return None


# ---- Starting


def spawn(request: Spawn) -> Call[RunInfo]:
    return Call(request, Reply, _started)


def _started(reply: Reply) -> RunInfo:
    if isinstance(reply, StartRefused):
        raise Refused(reply.refused)
    assert isinstance(reply, RunReply)  # a spawn that no shim sends has no other reply
    return reply.run


def go_on(run: RunId, task: str | None, *, rest: bool, fresh: bool) -> Call[RunInfo]:
    try:
        return spawn(spawn_options.continuation(run, task, rest=rest, fresh=fresh))
    except exits.Quit as error:
        raise of_quit(error) from None


def recall(run: RunId) -> Call[Recalled]:
    def own(reply: Recalled) -> Recalled:
        if reply.owner is not None:
            words = f"run {reply.run} belongs to {reply.owner}, who alone can start it again"
            raise RequestFailed(words, ErrorCode.NOT_PERMITTED)
        return reply

    return Call(Recall(id=0, run=run), Recalled, own)


def again(
    found: Recalled, env: Mapping[str, str], check: Sequence[str] | None, group: str | None
) -> Call[RunInfo]:
    """As `sfactl rerun`: what belonged to the client of the first run is left out."""
    request = found.request
    checks = request.check if check is None else Checks(commands=list(check))
    return spawn(
        replace(
            request,
            env=environment.variables(env),
            env_set=bool(env),
            umask=environment.umask(),
            claim=environment.claim(os.environ),
            key=os.urandom(16).hex(),
            check=checks,
            group=request.group if group is None else group,
            stdio="files",
            stdin="pipe" if request.stdin == "pipe" else "null",
            after=[],
            detach=False,
            tied=False,
            descriptors=0,
        )
    )


# ---- One run


def info(run: RunId) -> Call[RunInfo]:
    return Call(Info(id=0, run=run), RunReply, _of_run)


def wait(run: RunId, timeout: float | None) -> Call[Outcome]:
    def outcome(reply: RunReply) -> Outcome:
        if not reply.run.status.terminal:
            raise TimeoutError(f"run {run} has not ended within {timeout:g} s")
        return Outcome(reply.run)

    return Call(Wait(id=0, run=run, timeout=timeout), RunReply, outcome)


def stop(
    runs: Sequence[RunId], *, grace: float | None, signal: int, **chosen: Any
) -> Call[Stopped]:
    """`chosen`: fields of `Stop` that choose runs."""
    given = Stop(id=0, runs=list(runs), grace=grace, signal=signal, **chosen)
    return Call(given, Stopped, lambda reply: reply)


def pause(run: RunId) -> Call[RunInfo]:
    return Call(Pause(id=0, run=run), RunReply, _of_run)


def resume(run: RunId, limits: Limits) -> Call[RunInfo]:
    given = limits_of(limits, "resume()")
    return Call(Resume(id=0, run=run, limits=given), RunReply, _of_run)


def approve(run: RunId, limits: Limits) -> Call[RunInfo]:
    given = limits_of(limits, "approve()")
    return Call(Approve(id=0, run=run, limits=given), RunReply, _of_run)


def deny(run: RunId) -> Call[RunInfo]:
    return Call(Deny(id=0, run=run), RunReply, _of_run)


def limit(run: RunId, limits: Limits) -> Call[RunInfo]:
    given = limits_of(limits, "limit()")
    if not given:
        raise ValueError("say which limits, as in: run.limit(turns=50, cost='5:pause')")
    return Call(ChangeLimits(id=0, run=run, limits=given), RunReply, _of_run)


def send(run: RunId, data: bytes | str, *, eof: bool) -> Call[None]:
    written = data.encode() if isinstance(data, str) else data
    return Call(Send(id=0, run=run, data=written, eof=eof), Done, _of_nothing)


def signal(run: RunId, number: int) -> Call[None]:
    return Call(Signal(id=0, run=run, signal=number), Done, _of_nothing)


def result(run: RunId, *, raw: bool, wrapped: bool, max_bytes: int) -> Call[str]:
    given = Result(id=0, run=run, raw=raw, wrapped=wrapped, max_bytes=max_bytes)
    return Call(given, ResultText, lambda reply: str(reply.text))


class Piece(NamedTuple):
    """A part of an output."""

    data: bytes
    next: int
    """Where the part after it begins."""
    last: bool
    """The run has ended, and this is all."""


def output(run: RunId, stream: Stream, offset: int) -> Call[Piece]:
    def piece(reply: OutputPart) -> Piece:
        return Piece(reply.data, reply.offset + len(reply.data), reply.ended)

    return Call(ReadOutput(id=0, run=run, stream=stream, offset=offset), OutputPart, piece)


class Calls(NamedTuple):
    """A page of model calls."""

    calls: list[CallInfo]
    more: bool


def model_calls(run: RunId, after: CallInfo | None) -> Call[Calls]:
    given = ListCalls(
        id=0,
        run=run,
        after=after.time if after is not None else None,
        after_number=after.number if after is not None else 0,
    )
    return Call(given, CallPage, lambda reply: Calls(reply.calls, reply.more))


# ---- All runs


def run_pages(filters: dict[str, Any]) -> List:
    """Return the request for runs, oldest first. Raise `TypeError` for an unknown filter."""
    known = {"status", "name", "user", "root", "since", "labels", "group", "type", "channel"}
    known |= {"model", "live"}
    if unknown := filters.keys() - known:
        raise TypeError(f"runs are not chosen by {', '.join(map(repr, sorted(unknown)))}")
    given = {name: value for name, value in filters.items() if value is not None}
    if "type" in given:
        given["run_type"] = given.pop("type")
    if isinstance(given.get("since"), datetime):
        given["since"] = given["since"].timestamp()
    if "status" in given:
        words = given["status"]
        words = [words] if isinstance(words, str) else list(words)
        given["status"] = [Status(word) for word in words]
    return List(id=0, **given)


class Runs(NamedTuple):
    """A page of runs."""

    runs: list[RunInfo]
    next: List | None
    """The request for the page after it."""


def runs(wanted: List) -> Call[Runs]:
    request = wanted if wanted.after is not None else replace(wanted, after="", rows=PAGE)

    def page(reply: RunList) -> Runs:
        following = replace(request, after=reply.next) if reply.next is not None else None
        return Runs(reply.runs, following)

    return Call(request, RunList, page)


def events(
    runs: Sequence[RunId],
    types: Sequence[str],
    severity: Severity,
    after: int | None,
    since: datetime | None,
    *,
    follow: bool,
) -> Events:
    return Events(
        id=0,
        after=after if after is not None else 0 if since is not None or runs else None,
        since=since.timestamp() if since is not None else None,
        runs=list(runs),
        types=list(types),
        severity=severity,
        rows=PAGE,
        follow=follow,
    )


class Following:
    """Where a reader of events is: which they have read, and what is to be asked next."""

    def __init__(self, wanted: Events) -> None:
        self.wanted = wanted
        self._failures = 0
        self.ended = False
        """There are no more."""

    def may_retry(self) -> bool:
        """Return whether to ask again a daemon that could not answer, because it was executing
        itself again."""
        self._failures += 1
        return self._failures <= MAX_AGAIN

    def take(self, reply: Reply) -> tuple[list[Event], bool]:
        """Return the events in a reply, and whether `wanted` is to be asked again for more."""
        self._failures = 0
        if isinstance(reply, EventPush):
            self._reach(reply.event.number, reply.cursor)
            return self._shown([reply.event]), False
        assert isinstance(reply, EventPage)
        self._reach(reply.reached, reply.cursor)
        self.ended = not reply.more and not self.wanted.follow
        return self._shown(reply.events), reply.more

    def _reach(self, number: int, cursor: str) -> None:
        after = number if not cursor else None
        self.wanted = replace(self.wanted, after=after, cursor=cursor, since=None)

    def _shown(self, found: list[Event]) -> list[Event]:
        return found


class FollowingRun(Following):
    """The same for the events of a run and of those below it, which end with its end."""

    def __init__(self, run: RunId, types: Sequence[str], severity: Severity) -> None:
        # its end is to be seen whatever is wanted
        super().__init__(events([run], (), "low", None, None, follow=True))
        self._run = run
        self._types = types
        self._least = SEVERITIES.index(severity)

    def _shown(self, found: list[Event]) -> list[Event]:
        self.ended |= any(event.run_id == self._run and event.type in ENDS for event in found)
        return [event for event in found if self._is_wanted(event)]

    def _is_wanted(self, event: Event) -> bool:
        named = not self._types or any(fnmatchcase(event.type, each) for each in self._types)
        return named and SEVERITIES.index(event.severity) >= self._least


def summary(
    since: datetime | float | None, by: By, labels: Mapping[str, str] | None, **chosen: Any
) -> Call[Summary]:
    if isinstance(since, datetime):
        since = since.timestamp()
    begin = time.time() - SUMMARISED if since is None else float(since)
    given = Summarise(id=0, since=begin, by=by, labels=dict(labels or {}), **chosen)
    return Call(given, Summarised, lambda reply: reply.summary)


# ---- The daemon


def status() -> Call[DaemonStatus]:
    return Call(DaemonInfo(id=0), DaemonStatus, lambda reply: reply)


def reload() -> Call[list[Change]]:
    return Call(Reload(id=0), Reloaded, lambda reply: reply.changed)


def agents() -> Call[list[AgentInfo]]:
    return Call(Agents(id=0), AgentList, lambda reply: reply.agents)


def plans() -> Call[list[SubscriptionInfo]]:
    return Call(ListSubscriptions(id=0), SubscriptionList, lambda reply: reply.accounts)


def prune(older_than: float | None, keep: int, *, dry_run: bool) -> Call[Pruned]:
    given = Prune(id=0, older_than=older_than, keep=keep, dry_run=dry_run)
    return Call(given, Pruned, lambda reply: reply)
