"""The part in a daemon: it keeps what agents ask until a person has answered, holds their
runs meanwhile, and tells of it.

Agent programs ask again and again while they wait, so what is asked survives a daemon that is
killed, and is dropped when its program is gone. Nothing of it is saved.
"""

from typing import Literal

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
from .messages import AnswerApproval, ApprovalAnswer, AskApproval

WAIT = 20.0
"""Seconds that one request waits."""
DROPPED_AFTER = 90.0
"""Seconds after which what is not asked again is dropped."""
MOST_ASKED = 64
"""Calls of one run that wait."""
MOST_SHOWN, MOST_MESSAGE = 4096, 1000


class _Asked(Struct):
    shown: Approval
    asked_at: float
    """On trio's clock: when it was asked last."""
    answered: trio.Event = field(default_factory=trio.Event)
    state: Literal["pending", "allowed", "denied"] = "pending"
    message: str = ""


class Approvals:
    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self._live = heart.catalogue.live
        self._asked: dict[RunId, dict[str, _Asked]] = {}
        """By the keys of their programs."""
        self._numbers: dict[RunId, int] = {}
        self._some = trio.Event()

    def ask(self, asker: Asker, request: AskApproval) -> None:
        name = request.run if request.run is not None else asker.peer.run
        if name is None:
            raise bad_request("say which run asks: this process is in no run")
        run = asker.resolve(name)
        if run.id not in self._live:
            raise wrong_state(f"run {run.id} is {run.status}; it asks for nothing any more")
        check_most("characters of a key", len(request.key), 256)
        known = self._asked.setdefault(run.id, {})
        one = known.get(request.key)
        if one is None:
            if sum(each.state == "pending" for each in known.values()) >= MOST_ASKED:
                raise too_many("calls that wait for approval", MOST_ASKED + 1, MOST_ASKED)
            one = known[request.key] = self._new(run.id, request)
            self._changed(run.id)
            self._tell(run.id, EventType.APPROVAL_REQUESTED, "medium", _in_words(one.shown))
            self._some.set()
        one.asked_at = trio.current_time() + WAIT

        async def wait() -> _Asked:
            with trio.move_on_after(WAIT):
                await one.answered.wait()
            one.asked_at = trio.current_time()
            return one

        asker.later(
            wait,
            lambda one: ApprovalAnswer(id=asker.id, state=one.state, message=one.message),
        )

    def _new(self, run: RunId, request: AskApproval) -> _Asked:
        number = self._numbers[run] = self._numbers.get(run, 0) + 1
        shown = Approval(
            call=f"call-{number}",
            tool=_one_line(request.tool)[:200],
            arguments=_cut(redacted(clean(request.arguments.encode(errors="replace"))), MOST_SHOWN),
            cwd=_one_line(request.cwd)[:1000],
            since=wall_clock(),
        )
        return _Asked(shown, trio.current_time())

    def answer(self, asker: Asker, request: AnswerApproval) -> None:
        run = asker.resolve(request.run)
        check_most("characters of a message", len(request.message), MOST_MESSAGE)
        waits = self._waiting(run.id)
        one = next((each for each in waits if each.shown.call == request.call), None)
        if one is None:
            calls = ", ".join(each.shown.call for each in waits) or "none"
            raise wrong_state(
                f"run {run.id} does not ask for {request.call[:64]!r}; it asks for: {calls}"
            )
        one.state = "allowed" if request.allow else "denied"
        one.message = request.message
        one.answered.set()
        self._changed(run.id)
        words = f"{one.shown.call} ({one.shown.tool}) was {one.state} by {asker.peer.who}"
        self._tell(run.id, EventType.APPROVAL_ANSWERED, "low", words)
        asker.reply(Done(id=asker.id))

    def _waiting(self, run: RunId) -> list[_Asked]:
        return [each for each in self._asked.get(run, {}).values() if each.state == "pending"]

    def _changed(self, run: RunId) -> None:
        """Show what a run asks for, and hold it, or let it go on."""
        live, waits = self._live.get(run), self._waiting(run)
        if live is None or live.run.status.terminal:
            return
        shown = tuple(each.shown for each in waits)
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
            while self._asked:
                await trio.sleep(DROPPED_AFTER / 3)
                self._drop(trio.current_time() - DROPPED_AFTER)

    def _drop(self, before: float) -> None:
        for run, known in list(self._asked.items()):
            gone = [key for key, each in known.items() if each.asked_at < before]
            for key in gone:
                del known[key]
            if not known:
                del self._asked[run]
            if gone:
                self._changed(run)

    def ended(self, run: Run) -> None:
        for each in self._asked.pop(run.id, {}).values():
            each.state, each.message = "denied", "the run has ended"
            each.answered.set()
        self._numbers.pop(run.id, None)


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
        serve=approvals.serve,
        ended=approvals.ended,
    )
