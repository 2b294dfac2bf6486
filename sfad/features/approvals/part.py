"""The part in a daemon: it keeps what agents ask until a person has answered, holds their
runs meanwhile, and tells of it.

Agent programs ask again and again while they wait. What is asked is saved, so that it has the same
number after a restart, and an answer that was given before reaches its program. It is dropped when
its program is gone.
"""

from typing import Literal

import msgspec
import trio
from msgspec import Struct, field

from ...core import events as e
from ...core.state.run import Run
from ...daemon.loop.seam import Heart, Part
from ...daemon.server.asker import Asker
from ...host.clock import wall_clock
from ...protocol.errors import bad_request, check_most, too_many, wrong_state
from ...protocol.event_types import EventType
from ...protocol.messages import Done
from ...protocol.texts.redaction import redacted
from ...protocol.texts.sanitise import clean
from ...protocol.types import Approval, Event, RunId, Severity
from .feature import SAVED
from .messages import AnswerApproval, ApprovalAnswer, AskApproval

WAIT = 20.0
"""Seconds that one request waits."""
DROPPED_AFTER = 90.0
"""Seconds after which what is not asked again is dropped."""
MOST_ASKED = 64
"""Calls of one run that wait."""
MOST_SHOWN, MOST_MESSAGE = 4096, 1000


class _Call(Struct):
    shown: Approval
    state: Literal["pending", "allowed", "denied"] = "pending"
    message: str = ""


class _Saved(Struct):
    """What is saved of a run."""

    last: int = 0
    """The number of the last call: none is used twice, because a person may answer late."""
    calls: dict[str, _Call] = field(default_factory=dict)
    """By the keys of its program."""


class _Waits(Struct):
    """The program of a call."""

    asked_at: float
    """On trio's clock: when it asked last."""
    answered: trio.Event = field(default_factory=trio.Event)


class Approvals:
    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self._live = heart.catalogue.live
        self._spool = heart.resources.spool.values
        self._of: dict[RunId, _Saved] = {}
        self._waits: dict[tuple[RunId, str], _Waits] = {}
        self._some = trio.Event()

    def begin(self) -> None:
        """Go on with what an earlier daemon was asked."""
        for run in [key.removeprefix(SAVED) for key in self._spool.items if key.startswith(SAVED)]:
            found = self._spool.decoded(SAVED + run, _Saved)
            if found is None or run not in self._live:
                self._spool.write_soon({SAVED + run: None})
                continue
            self._of[run] = found
            for key in found.calls:
                self._waits[run, key] = _Waits(trio.current_time())
            self._changed(run)

    def ask(self, asker: Asker, request: AskApproval) -> None:
        name = request.run if request.run is not None else asker.peer.run
        if name is None:
            raise bad_request("say which run asks: this process is in no run")
        run = asker.resolve(name)
        if run.id not in self._live:
            raise wrong_state(f"run {run.id} is {run.status}; it asks for nothing any more")
        check_most("characters of a key", len(request.key), 256)
        calls = self._of.setdefault(run.id, _Saved()).calls
        if request.key not in calls:
            if len(self._waiting(run.id)) >= MOST_ASKED:
                raise too_many("calls that wait for approval", MOST_ASKED + 1, MOST_ASKED)
            one = calls[request.key] = self._new(self._of[run.id], request)
            self._waits[run.id, request.key] = _Waits(0.0)
            self._changed(run.id)
            self._tell(run.id, EventType.APPROVAL_REQUESTED, "medium", _in_words(one.shown))
        one, waits = calls[request.key], self._waits[run.id, request.key]
        waits.asked_at = trio.current_time() + WAIT

        async def wait() -> _Call:
            if one.state == "pending":
                with trio.move_on_after(WAIT):
                    await waits.answered.wait()
            waits.asked_at = trio.current_time()
            return one

        asker.later(
            wait,
            lambda one: ApprovalAnswer(id=asker.id, state=one.state, message=one.message),
        )

    def _new(self, of: _Saved, request: AskApproval) -> _Call:
        of.last += 1
        shown = Approval(
            call=f"call-{of.last}",
            tool=_one_line(request.tool)[:200],
            arguments=_cut(redacted(clean(request.arguments.encode(errors="replace"))), MOST_SHOWN),
            cwd=_one_line(request.cwd)[:1000],
            since=wall_clock(),
        )
        return _Call(shown)

    def answer(self, asker: Asker, request: AnswerApproval) -> None:
        run = asker.resolve(request.run)
        check_most("characters of a message", len(request.message), MOST_MESSAGE)
        waits = self._waiting(run.id)
        key = next((key for key, each in waits.items() if each.shown.call == request.call), None)
        if key is None:
            calls = ", ".join(each.shown.call for each in waits.values()) or "none"
            raise wrong_state(
                f"run {run.id} does not ask for {request.call[:64]!r}; it asks for: {calls}"
            )
        one = waits[key]
        one.state = "allowed" if request.allow else "denied"
        one.message = request.message
        self._waits[run.id, key].answered.set()
        self._changed(run.id)
        words = f"{one.shown.call} ({one.shown.tool}) was {one.state} by {asker.peer.who}"
        self._tell(run.id, EventType.APPROVAL_ANSWERED, "low", words)
        asker.reply(Done(id=asker.id))

    def _waiting(self, run: RunId) -> dict[str, _Call]:
        calls = self._of[run].calls if run in self._of else {}
        return {key: each for key, each in calls.items() if each.state == "pending"}

    def _changed(self, run: RunId) -> None:
        """Save and show what a run asks for, and hold it, or let it go on."""
        self._some.set()
        live, waits = self._live.get(run), self._waiting(run)
        if live is None or live.run.status.terminal:
            return
        self._spool.write_soon({SAVED + run: msgspec.msgpack.encode(self._of[run])})
        shown = tuple(each.shown for each in waits.values())
        live.show(approvals=shown or None)
        words = "; ".join(map(_in_words, shown))
        self._heart.feed(e.PersonAsked(trio.current_time(), run, words))

    def _tell(self, run: RunId, what: EventType, severity: Severity, words: str) -> None:
        event = Event(type=what, severity=severity, message=words)
        self._heart.feed(e.Did(trio.current_time(), run, event))

    async def serve(self) -> None:
        """Drop what no program asks any more."""
        while True:
            await self._some.wait()
            self._some = trio.Event()
            while self._waits:
                await trio.sleep(DROPPED_AFTER / 3)
                self._drop(trio.current_time() - DROPPED_AFTER)

    def _drop(self, before: float) -> None:
        gone = [place for place, each in self._waits.items() if each.asked_at < before]
        for run, key in gone:
            del self._waits[run, key], self._of[run].calls[key]
        for run in dict.fromkeys(run for run, _ in gone):
            self._changed(run)

    def ended(self, run: Run) -> None:
        of = self._of.pop(run.id, None)
        if of is None:
            return
        for key, each in of.calls.items():
            each.state, each.message = "denied", "the run has ended"
            self._waits.pop((run.id, key)).answered.set()
        self._spool.write_soon({SAVED + run.id: None})


def _one_line(text: str) -> str:
    return redacted(" ".join(clean(text.encode(errors="replace")).split()))


def _in_words(one: Approval) -> str:
    """Return `Bash {"command": "make"} in /home/ann (call-1)`."""
    place = f" in {one.cwd}" if one.cwd else ""
    return f"{one.tool} {_cut(_one_line(one.arguments), 300)}{place} ({one.call})"


def _cut(text: str, most: int) -> str:
    """Return at most so many characters, and how many are left out: what is allowed unseen."""
    more = len(text) - most
    return text if more <= 0 else f"{text[:most]}… ({more} characters more)"


def part(heart: Heart) -> Part:
    approvals = Approvals(heart)
    return Part(
        verbs={AskApproval: approvals.ask, AnswerApproval: approvals.answer},
        begin=approvals.begin,
        serve=approvals.serve,
        ended=approvals.ended,
    )
