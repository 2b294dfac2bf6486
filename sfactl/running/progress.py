"""The progress lines of a run in the foreground, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sfad.protocol.requests.base import Error, Reply
from sfad.protocol.requests.starting import Spawn
from sfad.protocol.types import Event, RunInfo, Status

from .. import output
from ..options import spawn as spawn_options
from ..options.limits import Notices, in_force, totals
from ..showing.waiting import left_behind


class ProgressLines:
    """What the user reads about a run while it runs. `note` prints a line on stderr."""

    def __init__(self, message: Spawn, note: Callable[[str], None], *, verbose: bool) -> None:
        self._message = message
        self._note = note
        self.verbose = verbose and not message.quiet
        self.queued = False
        """Whether the run has not left the queue, as far as the events tell."""
        self._run: RunInfo | None = None
        self._early: list[Event] = []
        """Events of the run from before the reply that says which run it is."""
        self._notices = Notices()

    def started(self, run: RunInfo) -> None:
        """Report the run as the daemon has accepted it, then the events that came before."""
        self._run = run
        self.queued = run.status in (Status.ACCEPTED, Status.QUEUED)
        if not run.status.terminal:
            self.say(_queued(run) if self.queued else f"starting: {in_force(run)}")
        for words in spawn_options.caveats(run, self._message):
            self._note(words)
        for event in self._early:
            self._show(event)

    def event(self, event: Event) -> None:
        """Report an event, or keep it until the run is known."""
        if self._run is None and not self.verbose:
            self._early.append(event)
        else:
            self._show(event)

    def forget_early(self) -> None:
        """Discard the kept events, because the connection on which they came is lost."""
        self._early.clear()

    def left_queue(self) -> None:
        """Report that the run starts, if it was queued."""
        if self.queued and self._run is not None:
            self.queued = False
            self.say(f"starting: {in_force(self._run)}")

    def ended(self, final: RunInfo, *, by_user: bool) -> None:
        """Report the end. Quiet hides progress, but not the reason of a failure that a signal of
        the user did not cause."""
        final = _without_cause_below(final)
        if not self._message.quiet:
            self.say(_ending(final))
        elif not by_user and (words := output.failure(final)):
            self._note(words)
        elif final.status is Status.COMPLETED and final.stopped_children is not None:
            self._note(f"sfactl: {final.id} {output.plain(final.stopped_children.message)}")
        if not self._message.quiet and (words := output.offer(final)):
            self.say(words)
        if not self._message.quiet:
            for words in left_behind(final):
                self.say(words)

    def failed(self, reply: Reply, _descriptors: Sequence[int]) -> None:
        """Report a request that failed, only with `--verbose`: the run's end says more."""
        if isinstance(reply, Error) and self.verbose:
            self._note(f"sfactl: {reply.message}")

    def say(self, text: str) -> None:
        """Print a progress line, unless the run is quiet or not known yet."""
        if not self._message.quiet and self._run is not None:
            self._note(f"[agent:{self._run.name}] {text}")

    def _show(self, event: Event) -> None:
        own = self._run is not None and event.run_id == self._run.id
        if self.verbose:
            told = f"{event.type}: {output.plain(event.message)}".removesuffix(": ")
            self._note(f"[agent:{event.agent_name or '-'}] {told}")
        elif own and event.type == "run_started":
            self.left_queue()
        elif own and event.type in ("run_repeating", "limits_widened", "model_free"):
            self.say(output.plain(event.message))
        elif own and event.limit_kind is not None:
            self._limit(event)
        elif own and event.type == "run_paused" and event.message:
            self.say(f"paused: {output.plain(event.message)}")
        elif own and event.type == "run_progress" and not event.is_milestone:
            # its stderr has shown it
            self.say(output.plain(event.message))
        elif own and event.type in ("meter_unpriced", "meter_gap", "meter_silent"):
            unknown = "" if event.type == "meter_unpriced" else "not all of its use is known: "
            self.say(f"{unknown}{output.plain(event.message)}")

    def _limit(self, event: Event) -> None:
        if self._run is not None and (words := self._notices.of(event, self._run)):
            self.say(words)


def _queued(run: RunInfo) -> str:
    return f"queued: {words}" if (words := output.why_waits(run)) else "queued"


def _ending(final: RunInfo) -> str:
    why = f": {words}" if (words := output.why_ended(final)) else ""
    used = _used(final)
    return final.status.value + why + (f"; it used {used}" if used else "")


def _without_cause_below(final: RunInfo) -> RunInfo:
    """Return the run with a reason that only names the runs below it of which it failed: they have
    said why, some lines above."""
    reason = final.reason
    if reason is None or not reason.below:
        return final
    path = " › ".join(reason.below)
    return replace(
        final,
        reason=replace(
            reason, message=f"{reason.message.partition(f': {path}: ')[0]}, because of {path}"
        ),
    )


def _used(final: RunInfo) -> str | None:
    if final.reason:  # the reason of a limit contains the figure
        return output.bounded_use(final.usage)
    if final.descendants:
        return totals(final)
    return output.bounded_use(final.usage) or output.used(final.usage)
