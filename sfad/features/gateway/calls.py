"""Model calls that the gateway asks for before it makes them: admitted, lowered to what fits, held,
or refused.

A call that does not fit waits as long as other calls' reservations are in its way. Then its maximum
output is lowered to what fits, if that is worth a call, and for a limit that pauses also ample for
the run's replies. Else the call is answered by the outermost limit, else by the purse, that has
too little room for it. Bounds on rates and parallel calls make calls wait, too.

The input of a call is an estimate, and may be more. That is part of what has to fit, as far as
there is room for it. The most that it may be is kept from other calls, so that their errors do not
add up; from the output of the call itself only what estimates are often wrong by, and only if the
output is then worth a call. So a limit is exceeded by the error of one estimate at most.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...core import calling
from ...core import commands as c
from ...core import events as e
from ...core.limits.enforcement import WAITING, after_cut, cut_at
from ...core.limits.use_requests import MAX_RESERVATIONS, over_limit
from ...core.machine import Components
from ...core.purses import Purse
from ...core.state.account import OpenReservation, Use
from ...core.state.holds import CallsWait
from ...core.state.limits import ActiveLimit, amount
from ...core.state.run import MAX_FREE, MAX_FREE_NAME, Run, Token
from ...core.state.vocabulary import ReasonKind, Timer
from ...protocol.event_types import EventType
from ...protocol.requests.gateway import AdmitCall, CallDecision
from ...protocol.types import Action, CallInfo, ErrorCode, LimitKind, Reason, RunId, Status
from .call_rules import Barrier, CallRates, Repeats, forbidden_model
from .feature import of

MAX_WAITING = 1000
"""Calls of one run that wait. A thousand are a leak."""

MAX_LOOKED_AT = 32
"""Calls of one run that stay waiting, after which the others of the run are not decided again by
the same event. A run with a thousand calls must not slow down the others'."""

_AMPLE = 1.5
"""A limit that pauses lowers a call only to so many times the run's longest reply, so that the
maximum cuts no usual reply. To hold each call whose maximum does not fit would pause Claude Code,
which asks for 64 000 tokens, before its first call."""

MAX_WORDS = 1000
"""Characters of a refusal or an error that are recorded. It may name a model, whose name the agent
chooses."""
LAST_OUTPUT = 256
"""Tokens that the last answer of a run may have at least."""
LAST_WORDS = (
    "This is your last answer: a limit of this run is nearly used up, and no further call is made. "
    "Call no tool. Say what is done and what is open."
)
"""What is put into the last call of a run."""
_NO_CALL_AFTER = {
    "under_way": "the last call of run {}, which one of its limits concludes, is under way",
    "made": "run {} has made its last call: one of its limits concludes it",
}
MAX_MODEL = 200
"""Characters of a model's name that are recorded. An agent may send 64 MiB of them."""


class WaitingCall(Struct):
    """A call that is not answered yet. An admitted one is a reservation of its run's account."""

    event: e.CallAsked
    info: CallInfo
    until: float | None = None
    """When it stops waiting for other calls; `None` while it is held by a limit or a pause."""
    rate: Barrier | None = None
    """The rate that it waits for."""
    why: str | None = None
    """Why it waits; `None` while what holds its run holds it."""

    @property
    def due(self) -> float | None:
        """When it has to be decided again, even if nothing happens."""
        return self.until if self.rate is None else self.rate.free_at


class _Doubt(Struct, frozen=True):
    """What a call may take beyond its estimate, because that of its input may be wrong."""

    most: int
    likely: int | None = None
    """The part of it by which estimates are often wrong; `None`: all of it."""

    @property
    def usual(self) -> int:
        return self.most if self.likely is None else self.likely


_NO_DOUBT = _Doubt(0)


class _Room(Struct, frozen=True):
    """What a limit, or a purse, leaves for a call."""

    left: float
    """Of its own unit; below 0 where more is used than allowed."""
    fixed: int
    """What the call takes of it whatever its output is."""
    each: int
    """What each token of output takes of it."""
    kind: LimitKind
    least: int
    """To how much output this may lower the call."""
    doubt: "_Doubt"
    doubts: int
    """The same of other calls under way."""
    limited: Run | None = None
    """The run whose limit it is."""
    active: ActiveLimit | None = None
    purse: Purse | None = None

    def output(self, kept: float) -> float:
        """Return the tokens of output that fit if so much is kept for other things; below 0:
        none."""
        left = self.left - self.fixed - kept
        return -1 if left < 0 else left // self.each if self.each else inf

    def needed(self, output: int) -> int:
        return self.fixed + self.each * output


_BROKEN_OFF = "the gateway was killed before it ended; it was charged as reserved"
_NOT_MADE = (
    "the daemon died before the gateway had learnt that it was admitted; it was asked for again"
)


def _seconds(duration: float) -> float:
    return round(duration, 3)


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


class Calls(calling.Calls):
    def __init__(self, components: Components) -> None:
        context, spending = components.context, components.spending
        self._ctx = context
        self._attempts = components.attempts
        self._spending = spending
        self._limits = components.limits
        self._rates = CallRates(context, spending)
        self._repeats = Repeats(context)
        self.waiting: dict[Token, WaitingCall] = {}
        """Calls that are held or that wait for others, the oldest first."""
        self._of_run: dict[RunId, dict[Token, WaitingCall]] = {}
        """The same by their runs."""
        self.counted: dict[RunId, int] = {}
        """Tokens of the longest reply of each run that has asked for a call."""
        self._armed: dict[RunId, float] = {}
        """When the timers of runs whose calls wait fire."""

    def happened(self, ev: e.OfCalls) -> None:
        match ev:
            case e.CallAsked():
                self.call_asked(ev)
            case e.CallWithdrawn():
                self.call_withdrawn(ev)
            case e.CallSettled():
                self.call_settled(ev)
            case e.CallSilent():
                self.call_silent(ev)
            case e.GatewayGone():
                self.gateway_gone(ev)
            case e.GatewayConnected():
                self.gateway_connected(ev)

    def call_asked(self, ev: e.CallAsked) -> None:
        if ev.request.free is not None:
            self._note_free(ev.request)
        call = WaitingCall(ev, self._info(ev))
        ahead = Counter(each.rate.key for each in self.waiting.values() if each.rate is not None)
        if not self._decide(call, ev.at, ahead):
            run = ev.request.run
            if len(self._of_run.get(run, ())) < MAX_WAITING:
                self.waiting[ev.token] = call
                self._of_run.setdefault(run, {})[ev.token] = call
                self._ctx.do(c.TellCall(call.info, self._lineage(call.info)))
                due = min(inf if call.due is None else call.due, self._armed.get(run, inf))
                self._arm(self._armed | {run: due} if due < inf else self._armed)
            else:
                self._fail(
                    call,
                    ErrorCode.WRONG_STATE,
                    f"{MAX_WAITING} calls of run {run} wait already",
                    ev.at,
                )

    def _info(self, ev: e.CallAsked) -> CallInfo:
        return CallInfo(
            time=ev.time,
            run_id=ev.request.run,
            number=self._spending.next_number(),
            state="waiting",
            upstream=ev.request.upstream,
            model=ev.request.model[:MAX_MODEL],
            streamed=ev.request.streamed,
            estimated=ev.price.estimated,
        )

    def call_withdrawn(self, ev: e.CallWithdrawn) -> None:
        """Forget a call that is not to be made."""
        call = self._forget(ev.token) if ev.token in self.waiting else None
        if call is not None and ev.why is not None:
            waited = _seconds(ev.at - call.event.at)
            self._record(replace(call.info, state="withdrawn", error=ev.why, waited_s=waited))

    def _forget(self, token: Token) -> WaitingCall:
        """A call waits no more."""
        call = self.waiting.pop(token)
        run = call.event.request.run
        del self._of_run[run][token]
        if not self._of_run[run]:
            del self._of_run[run]
        return call

    def call_settled(self, ev: e.CallSettled) -> None:
        end = ev.call
        found = self._spending.reservation(end.reservation)
        if found is None:
            return  # its run has ended, and was charged in full for what it had reserved
        run, reservation = found
        self.counted[run.id] = max(self.counted.get(run.id, 0), ev.used.output_tokens or 0)
        self._spending.end_call(
            run,
            end.reservation,
            ev.used,
            status=end.status,
            cache_write_tokens=end.tokens.cache_write if end.tokens is not None else None,
            **_told(ev),
            tools=len(end.tools),
            first_byte_s=rounded(end.first_byte_s),
            elapsed_s=rounded(end.seconds),
            error=end.error[:MAX_WORDS] if end.error is not None else None,
        )
        if reservation.last:
            self._attempts.last_call_ended(run, ev.at, made=not end.failed)
        elif end.cut and reservation.call is not None:
            self._cut(run, reservation, reservation.call.clamped_to or 0, ev.at)
        self._attempts.call_ended(run, end, ev.at)
        self._repeats.tools_asked_for(run, end.tools)
        self._ctx.barrier.call_ended(run, end, ev.used.cost, ev.at)
        self._limits.enforce(run, ev.at)

    def _cut(self, run: Run, reservation: OpenReservation, tokens: int, at: float) -> None:
        """Note that a reply ended at the maximum to which a limit, or a purse, had lowered it."""
        run_id, kind = reservation.lowered_by or ("", LimitKind.COST)
        limited = next((each for each in run.lineage if each.id == run_id), None)
        if limited is not None and kind in limited.limits:
            self._limits.reply_cut(run, limited, limited.limits[kind], tokens, at)
        else:
            self._cut_by_purse(run, cut_at(tokens))

    def _cut_by_purse(self, run: Run, words: str) -> None:
        found = self._ctx.purses.cut(run, words)
        if found is None:
            words += "; a limit that has been raised since had no room for more"
            found = words, after_cut(Action.WARN)
            if run.cut is None:
                self._ctx.publish(EventType.RUN_PROGRESS, run, words)
        reason = Reason(kind=ReasonKind.LIMIT, limit_kind=LimitKind.COST, message=found[0])
        self._limits.cannot_complete([run], reason, found[1])

    def call_silent(self, ev: e.CallSilent) -> None:
        found = self._spending.reservation(ev.reservation)
        if found is not None:
            self._attempts.call_silent(found[0], ev.reservation, ev.silence)

    def gateway_gone(self, ev: e.GatewayGone) -> None:
        for noted in ev.noted:
            self.call_settled(noted)
        lost = self._reservations(ev.gateway_uid)
        for run, name, reservation in lost:
            self._spending.end_call(run, name, reservation.use, error=_BROKEN_OFF)
            if reservation.last:
                self._attempts.last_call_ended(run, ev.at, made=False)
        for run in dict.fromkeys(run for run, _, _ in lost):
            self._limits.enforce(run, ev.at)
            self._ctx.barrier.freeze_if_idle(run, ev.at)

    def gateway_connected(self, ev: e.GatewayConnected) -> None:
        for run, name, reservation in self._reservations(ev.gateway_uid):
            if name not in ev.reservations:
                self._spending.end_call(run, name, Use(), state="withdrawn", error=_NOT_MADE)
                if reservation.last:
                    self._attempts.last_call_ended(run, ev.at, made=False)
                self._ctx.barrier.freeze_if_idle(run, ev.at)

    def _reservations(self, gateway_uid: int | None) -> list[tuple[Run, str, OpenReservation]]:
        return [
            (run, name, each)
            for run in self._ctx.tree
            for name, each in run.account.reservations.items()
            if each.source == "gateway" and each.gateway_uid == gateway_uid
        ]

    def look(self, at: float) -> None:
        """Decide again about the calls that wait, because there may be more room now."""
        ahead, stay = Counter[str](), Counter[RunId]()
        due: dict[RunId, float] = {}
        for token, call in list(self.waiting.items()):
            run_id = call.event.request.run
            looked_at = stay[run_id] < MAX_LOOKED_AT or self._is_over(call, at)
            if looked_at and self._decide(call, at, ahead):
                self._forget(token)
                continue
            stay[run_id] += 1
            if call.rate is not None:
                ahead[call.rate.key] += 1
            again = call.due if looked_at else call.until
            if again is not None:
                due[run_id] = min(again, due.get(run_id, again))
        self._arm(due)

    def _is_over(self, call: WaitingCall, at: float) -> bool:
        """Return whether the call cannot wait any longer."""
        run = self._ctx.tree.get(call.event.request.run)
        return (
            run is None
            or run.status is Status.STOPPING
            or (call.until is not None and call.until <= at)
        )

    def forget(self, ended: Iterable[Run]) -> None:
        self._rates.forget(ended)
        for run in ended:
            self.counted.pop(run.id, None)

    def _arm(self, due: dict[RunId, float]) -> None:
        """Have calls that wait decided again when the first of each run is due."""
        for run_id, at in due.items():
            run = self._ctx.tree.get(run_id)
            if run is not None and self._armed.get(run_id) != at:
                self._ctx.arm(run, Timer.CALLS, at)
        self._armed = due

    def waiting_of(self, run: RunId) -> list[CallInfo]:
        """Return the calls of a run that wait, the oldest first."""
        return [each.info for each in self._of_run.get(run, {}).values()]

    def wait_of(self, run: RunId) -> CallsWait | None:
        """Return why calls of a run wait, if it is not the run itself that is held."""
        waiting = [each for each in self._of_run.get(run, {}).values() if each.why is not None]
        if not waiting:
            return None
        first = waiting[0]
        assert first.why is not None
        return CallsWait(len(waiting), first.event.at, first.due, first.why)

    # ---- one call

    def _decide(self, call: WaitingCall, at: float, ahead: Counter[str]) -> bool:
        """Answer the call, unless it has to wait. `ahead`: as `CallRates.barrier` takes it."""
        call.rate = call.why = None
        request, price = call.event.request, call.event.price
        run = self._ctx.tree.get(request.run)
        if run is None or run.status is Status.STOPPING:
            self._fail(
                call,
                ErrorCode.WRONG_STATE,
                f"run {request.run} {'has ended' if run is None else 'is being stopped'}",
                at,
            )
            return True
        if price.unsure is not None:
            self._fail(
                call,
                ErrorCode.UNAVAILABLE,
                f"the price of the call is not known now: {price.unsure}",
                at,
            )
            return True
        forbidden = (
            forbidden_model(run, model, self._ctx.policy)
            for model in (request.model, *request.others)
        )
        if (forbidden_by := next((why for why in forbidden if why is not None), None)) is not None:
            self._fail(call, ErrorCode.NOT_PERMITTED, forbidden_by, at)
            return True
        if (last := run.latest.last_call) is not None:
            self._refuse(call, _NO_CALL_AFTER[last].format(run.id), at)
            if last == "made":
                self._attempts.end_concluded(run, at)
            return True
        if _held(run):
            call.until = None
            return False
        if (settles := _hangs_up_by(run, call)) is not None and at < settles:
            call.until = settles
            call.why = "its program stood still for long, and may have given the call up"
            return False
        if (bar := self._ctx.barrier.bar(run, request, at)) is not None:
            if bar.action == "refuse":
                self._refuse(call, bar.message, at)
                return True
            bar.hold(run, at)
            call.until = None
            return False
        if len(run.account.reservations) >= MAX_RESERVATIONS:
            message = (
                f"run {run.id} has {MAX_RESERVATIONS} calls under way or unsettled "
                "reservations; settle some"
            )
            self._fail(call, ErrorCode.WRONG_STATE, message, at)
            return True
        rooms = list(self._rooms(run, call.event))
        if price.input_cost is None and any(room.kind is LimitKind.COST for room in rooms):
            message = (
                f"neither a price of the model '{request.model}' is known nor its provider's, "
                f'so no limit of money could bound the call; set [prices."{request.model}"] in '
                "the config (0 where it is free)"
            )
            self._fail(call, ErrorCode.UNAVAILABLE, message, at)
            return True
        short = [
            room
            for room in rooms
            if room.output(room.doubt.most + room.doubts) < request.max_output
        ]
        drawn = next((room for room in short if self._draws(room, request.max_output)), None)
        if drawn is not None:
            call.why = f"the keeper of the fleet is asked for more of {_whose(drawn)}"
            return False
        # what other calls leave of their reservations may be all that it lacks
        if (room := next(filter(self._reserved, short), None)) is not None:
            call.until = self._until(call, at)
            if call.until > at:
                call.why = f"the rest of {_whose(room)} is reserved for other calls"
                return False
        tight = next((room for room in rooms if room.output(room.doubts) < room.least), None)
        if tight is None:
            lowest = min(
                short, key=lambda room: room.output(room.doubt.usual + room.doubts), default=None
            )
            output = float(request.max_output)
            if lowest is not None:
                output = max(
                    lowest.output(lowest.doubt.usual + lowest.doubts),
                    *(room.least for room in short),
                )
            return self._admit_or_wait(
                run, call, int(min(output, request.max_output)), at, ahead, lowest
            )
        if tight.output(-self._reserved(tight)) >= tight.least:
            words = f"the rest of the {tight.kind} limit is reserved for other calls"
            if tight.output(0) >= tight.least:
                words = (
                    f"the {tight.kind} limit has room for this call only once others have told how "
                    "much input they have"
                )
            return self._refuse_for_now(call, f"{words}; try again when one has ended", 1.0, at)
        if tight.active is not None and tight.active.action is Action.CONCLUDE:
            return self._conclude(run, call, tight, at)
        return self._refuse_or_pause(run, call, tight, at)

    def _conclude(self, run: Run, call: WaitingCall, tight: _Room, at: float) -> bool:
        """Let the run's last call through, within what the limit has kept back for it. Each run
        that the limit binds has one. If there is no room for it either, end the run that has the
        limit."""
        assert tight.limited is not None
        assert tight.active is not None
        rooms = list(self._rooms(run, call.event, last=True))
        if any(room.output(room.doubts) < room.least for room in rooms):
            return self._refuse_or_pause(run, call, tight, at)
        lowest = min(rooms, key=lambda room: room.output(room.doubt.usual + room.doubts))
        output = max(
            lowest.output(lowest.doubt.usual + lowest.doubts), *(room.least for room in rooms)
        )
        run.latest.last_call = "under_way"
        self._limits.concluded(run, tight.limited, tight.active, tight.needed(tight.least), at)
        most = call.event.request.max_output
        self._admit(run, call, int(min(output, most)), at, lowest, last=True)
        return True

    def _until(self, call: WaitingCall, at: float) -> float:
        return at + of(self._ctx.policy).wait if call.until is None else call.until

    def _rooms(self, run: Run, ev: e.CallAsked, *, last: bool = False) -> Iterator[_Room]:
        """`last`: for the last call of the run, which may take what limits keep back for it."""
        request, price = ev.request, ev.price
        useful = max(ev.least_output, int(_AMPLE * self.counted.get(run.id, 0)))
        takes = {
            LimitKind.TURNS: (1, 0),
            LimitKind.MESSAGES: (1, 0),
            LimitKind.TOKENS: (request.input_tokens, request.choices),
            LimitKind.COST: (price.input_cost or 0, price.output_token * request.choices),
        }
        doubt = {
            LimitKind.TOKENS: _Doubt(request.more_input, request.likely_more),
            LimitKind.COST: _Doubt(price.more_input_cost, price.likely_more_cost),
        }
        for limited in run.lineage:
            for kind, (fixed, each) in takes.items():
                active = limited.limits.get(kind)
                if active is not None and active.binds:
                    left = active.threshold - (limited.account.used(kind) or 0)
                    if active.limit.action is Action.CONCLUDE and not last:
                        left -= active.kept_back(self._ctx.policy.limits.conclude_reserve)
                    doubts = (
                        sum(below.account.doubts.get(kind, 0) for below in limited.subtree())
                        if kind in doubt
                        else 0
                    )
                    least = (
                        min(request.max_output, LAST_OUTPUT)
                        if last
                        else min(request.max_output, useful)
                        if active.action in WAITING
                        else ev.least_output
                    )
                    yield _Room(
                        left,
                        fixed,
                        each,
                        kind,
                        least,
                        doubt.get(kind, _NO_DOUBT),
                        doubts,
                        limited,
                        active,
                    )
        for purse in self._ctx.purses.of(run) if self._ctx.purses.known else ():
            kind = LimitKind.COST
            yield _Room(
                purse.left,
                *takes[kind],
                kind,
                ev.least_output,
                doubt[kind],
                purse.doubts,
                purse=purse,
            )

    def _admit_or_wait(
        self,
        run: Run,
        call: WaitingCall,
        output: int,
        at: float,
        ahead: Counter[str],
        lowest: _Room | None,
    ) -> bool:
        """Admit a call that is affordable, unless it has to wait for its rate or for other calls.
        `lowest`: what has lowered its maximum, if anything has."""
        self.counted.setdefault(run.id, 0)
        barrier = self._rates.barrier(run, at, ahead)
        if barrier is None:
            self._rates.made(run, at)
            self._admit(run, call, output, at, lowest)
            return True
        call.until = self._until(call, at)
        if call.until > at and (barrier.free_at is None or barrier.free_at <= call.until):
            call.rate = barrier if barrier.free_at is not None else None
            call.why = barrier.words
            return False
        return self._refuse_for_now(
            call, barrier.message, max(1.0, (barrier.free_at or at) - at), at
        )

    def _refuse_for_now(self, call: WaitingCall, why: str, retry_after: float, at: float) -> bool:
        self._refuse(call, why, at, retry_after)
        return True

    def _admit(
        self,
        run: Run,
        call: WaitingCall,
        output: int,
        at: float,
        lowest: _Room | None,
        *,
        last: bool = False,
    ) -> None:
        request, price = call.event.request, call.event.price
        lowered = output if output < request.max_output else None
        info = replace(
            call.info,
            state="under_way",
            clamped_to=lowered,
            reserved_input=request.input_tokens,
            reserved_output=output * request.choices,
            waited_s=_seconds(at - call.event.at),
        )
        reservation = OpenReservation(
            model=request.model,
            input_tokens=request.input_tokens,
            output_tokens=output * request.choices,
            cost=None
            if price.input_cost is None
            else price.input_cost + price.output_token * output * request.choices,
            role=None,
            source="gateway",
            gateway_uid=call.event.gateway_uid,
            messages=1,
            more_input=request.more_input,
            more_cost=price.more_input_cost,
            call=info,
            lowered_by=(lowest.limited.id, lowest.kind)
            if lowest is not None and lowest.limited is not None
            else None,
            last=last,
        )
        self._note_called(run)
        reserved = self._spending.reserve(run, reservation)
        holds = self._ctx.barrier.holds(request.api)
        self._ctx.reply(
            call.event.token,
            CallDecision(
                id=request.id,
                reservation=reserved,
                max_output=lowered,
                holds_rejected=holds,
                last=LAST_WORDS if last else None,
            ),
        )

    def _note_free(self, request: AdmitCall) -> None:
        run, model = self._ctx.tree.get(request.run), request.model
        if run is None or model in run.free_models or len(model) > MAX_FREE_NAME:
            return
        if len(run.free_models) < MAX_FREE:
            run.free_models.add(model)
            self._ctx.changed(run)

    def _note_called(self, run: Run) -> None:
        for each in run.lineage:
            if not each.called:
                each.called = True
                self._ctx.changed(each)

    def _reserved(self, room: _Room) -> int:
        """Return what open reservations hold of a limit or a purse. Only asked for where a call
        does not fit."""
        if room.purse is not None:
            return room.purse.reserved
        assert room.limited is not None
        return room.limited.account.reserved(room.kind)

    def _draws(self, room: _Room, output: int) -> bool:
        """Return whether the call waits for more of a purse from another node."""
        needed = room.needed(output) + room.doubt.most + room.doubts
        return room.purse is not None and room.purse.draws(needed)

    def _refuse_or_pause(self, run: Run, call: WaitingCall, tight: _Room, at: float) -> bool:
        """Take the action of the limit or purse, and answer the call unless the run is held by
        it."""
        more = tight.needed(tight.least)
        if tight.purse is not None:
            self._note_called(run)  # so its tree can spend, and the action is taken on it too
            why = tight.purse.refuse(more, at)
        else:
            assert tight.limited is not None
            assert tight.active is not None
            unsure = tight.limited.account.ended_unsure.get(tight.kind, 0)
            unsure += sum(each.account.unsure(tight.kind) for each in tight.limited.subtree())
            used = tight.limited.account.used(tight.kind) or 0
            why = over_limit(tight.limited, tight.active, used, more).message
            if tight.output(-unsure) < tight.least or tight.active.action in WAITING:
                self._limits.reservation_refused(
                    tight.limited, tight.active, more, at, freeze=False
                )
            else:  # what may not have been used ends no run
                why = f"{why}; {amount(tight.kind, unsure)} of that may not have been used"
        if _held(run):
            return False
        self._refuse(call, why, at)
        return True

    # ---- records

    def _refuse(
        self, call: WaitingCall, why: str, at: float, retry_after: float | None = None
    ) -> None:
        refused = CallDecision(id=call.event.request.id, refused=why, retry_after=retry_after)
        self._ctx.reply(call.event.token, refused)
        self._record_refusal(call, why, at)

    def _fail(self, call: WaitingCall, code: ErrorCode, message: str, at: float) -> None:
        self._ctx.fail(call.event.token, code, message)
        self._record_refusal(call, message, at)

    def _record_refusal(self, call: WaitingCall, why: str, at: float) -> None:
        self._record(
            replace(
                call.info,
                state="refused",
                refused=why[:MAX_WORDS],
                waited_s=_seconds(at - call.event.at),
            )
        )

    def _record(self, info: CallInfo) -> None:
        self._ctx.do(c.RecordCall(info, self._lineage(info)))

    def _lineage(self, info: CallInfo) -> tuple[RunId, ...]:
        run = self._ctx.tree.get(info.run_id)
        return run.lineage_ids if run is not None else (info.run_id,)


def _whose(room: _Room) -> str:
    if room.purse is not None:
        return room.purse.what
    assert room.limited is not None
    return f"the {room.kind} limit of run {room.limited.id}"


def _told(ev: e.CallSettled) -> dict[str, Any]:
    """Return what the reply tells of its model and its kinds of tokens, and where its price is
    from."""
    end = ev.call
    if end.tokens is None:
        return {}
    return {
        "served": end.served if end.served not in {"", end.model} else None,
        "price_from": ev.price_from[:MAX_MODEL] if ev.price_from is not None else None,
        "modes": {mode: (part.input, part.output) for mode, part in end.tokens.modes.items()},
        "estimated": ev.used.estimated,
    }


_HANGS_UP_WITHIN = 2.0
"""Seconds in which a program that stood still for long hangs up a call whose time has run out
meanwhile."""


def _hangs_up_by(run: Run, call: WaitingCall) -> float | None:
    """Return until when a call waits that was asked for before its program stood still for long: if
    it has given the call up, it makes it again, and it must not be made twice."""
    return (
        run.thawed_at + _HANGS_UP_WITHIN
        if run.thawed_at is not None and call.event.at < run.thawed_at
        else None
    )


def _held(run: Run) -> bool:
    return run.paused_in_lineage or any(each.limit_hold is not None for each in run.lineage)


calls = Calls
