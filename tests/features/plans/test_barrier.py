"""Subscriptions: what holds a call or a root, who goes on when, and whose share of a window is how
large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.context import Context, Reading
from sfad.core.life.pausing import REPLY_OUTLIVES
from sfad.core.machine import Machine
from sfad.core.state.run import Run
from sfad.features.gateway.calls import Calls
from sfad.features.plans.barrier import Subscriptions
from sfad.features.plans.feature import NAME, PlansConfig
from sfad.features.plans.windows import (
    AFTER_RESET,
    CLOCKS_DIFFER,
    SPREAD,
    UNTOLD,
    Subscription,
    Window,
    account_of,
    clock,
    spread,
)
from sfad.protocol.requests.gateway import CallDecision, SeeWindows
from sfad.protocol.requests.windows import SeenWindow
from sfad.protocol.types import LimitKind, RunId, Status
from tests.core.holding import moment
from tests.core.policies import changed
from tests.core.transcript import ANN, BOB, NOON, Transcript, use
from tests.tiers import examples

KEY = f"anthropic/{account_of(ANN.uid, 'org')}"
HOUR = 3600.0


class Plan(Transcript):
    """A transcript in which calls use one subscription of Anthropic's."""

    def __init__(self, **plan: Any) -> None:
        super().__init__(
            barrier=Subscriptions,
            sections={NAME: PlansConfig(**plan)},
            calls=Calls,
        )
        self.machine.calls()
        self.subscriptions.known_before([], self.at, NOON + timedelta(seconds=self.at))

    @property
    def subscriptions(self) -> Subscriptions:
        """The half of them in the core."""
        found = self.machine.barrier()
        assert isinstance(found, Subscriptions)
        return found

    def asks(self, run: RunId, model: str = "claude-sonnet", login: str = "login") -> e.CallAsked:
        return self.call(run, 10, api="anthropic", login=login, model=model)

    def answered(self, call: e.CallAsked) -> bool:
        """Whether a call has been admitted."""
        answer = self.answers.get(call.token)
        return isinstance(answer, CallDecision) and answer.reservation is not None

    def seen(
        self, run: RunId, used: float | None, *, window: str = "5h", left: float | None = HOUR,
        rejected: bool = False, login: str = "login", uid: int | None = ANN.uid,
    ) -> e.WindowsSeen:  # fmt: skip
        """A reply tells of a window that is reset in `left` seconds, or says nothing of its
        reset."""
        now = NOON + timedelta(seconds=self.at)
        seen = SeenWindow(
            window=window,
            used_ratio=used,
            resets_at=None if left is None else now.timestamp() + left,
            rejected=rejected,
        )
        status = "rejected" if rejected else "allowed"
        return self.tells(run, now, [seen], login=login, organization="org", status=status, uid=uid)

    def tells(
        self,
        run: RunId,
        time: datetime,
        windows: list[SeenWindow],
        *,
        login: str = "login",
        uid: int | None = ANN.uid,
        **more: Any,
    ) -> e.WindowsSeen:
        told = SeeWindows(
            id=0,
            run=run,
            provider="anthropic",
            time=time.timestamp(),
            login=login,
            windows=windows,
            **more,
        )
        return e.WindowsSeen(
            self.at, time, told, uid, (NOON + timedelta(seconds=self.at)).timestamp()
        )

    def due(self) -> e.Reminded:
        return e.Reminded(self.at, NAME, "", NOON + timedelta(seconds=self.at))

    def ended(self, call: e.CallAsked, cost: float = 0.01) -> e.CallSettled:
        name, _ = self.admission(call)
        return self.call_ended(name, use(messages=1, cost=cost), api="anthropic")

    def go(self, event: e.Event) -> list[c.Command]:
        """Have an event happen; return what it called for."""
        outcome = self.machine.handle(event)
        for command in outcome.commands:
            self._note(command)
            if isinstance(command, c.AnswerRequest):
                self.answers[command.token] = command.answer
        self._keep(outcome)
        return outcome.commands

    def told(self, commands: list[c.Command], what: str) -> list[str]:
        return [
            each.event.message
            for each in commands
            if isinstance(each, c.Publish) and each.event.type == what
        ]


def test_a_call_at_the_bound_waits_for_the_reset_and_goes_on_by_itself() -> None:
    t = Plan(keep=0.2)
    a = t.start("a")
    first = t.asks(a)
    t.go(first)
    assert t.answered(first)
    told = t.go(t.seen(a, 0.81, left=HOUR))
    assert t.told(told, "plan_exhausted") == [
        "the 5h window is 81 % used, agents may use 80 %; it resets at 13:00"
    ]
    assert len(t.told(told, "plan_nearing")) == 1
    second = t.asks(a)
    commands = t.go(second)
    assert not t.answered(second)
    assert t.run(a).status is Status.PAUSED
    assert c.Freeze(a) not in commands, (
        "the first call is under way, and must not be frozen in its middle"
    )
    reason = t.run(a).shown_reason
    assert reason is not None
    assert (reason.kind, reason.limit_kind, reason.used, reason.threshold) == (
        "plan",
        "plan",
        81.0,
        80.0,
    )
    assert c.Freeze(a) in t.go(t.ended(first))
    t.later(HOUR - 1)
    t.go(t.due())
    assert not t.answered(second)
    t.later(1 + AFTER_RESET)
    told = t.go(t.due())
    assert t.told(told, "plan_reset")
    assert t.subscriptions.known[KEY].windows["5h"].used is None, "unknown, and not 0"
    assert t.run(a).status is Status.RUNNING
    assert not t.answered(second), (
        "it stood still for long: if it has given the call up, it hangs up now"
    )
    t.later(2)
    t.go(t.fired(a, "calls"))
    assert t.answered(second)


def test_a_call_that_was_held_shortly_is_answered_at_once() -> None:
    t = Plan(keep=0.2)
    a = t.start("a")
    t.go(t.seen(a, 0.9, left=REPLY_OUTLIVES / 2))
    call = t.asks(a)
    t.go(call)
    t.later(REPLY_OUTLIVES / 2 + AFTER_RESET)
    t.go(t.due())
    assert t.answered(call)


def test_refused_is_the_call_and_not_the_run() -> None:
    t = Plan(keep=0.2, action="refuse")
    a = t.start("a")
    t.go(t.seen(a, 0.8))
    call = t.asks(a)
    t.go(call)
    answer = t.answers[call.token]
    assert isinstance(answer, CallDecision)
    assert answer.refused == "the 5h window is 80 % used, agents may use 80 %; it resets at 13:00"
    assert t.run(a).status is Status.RUNNING


@pytest.mark.parametrize("action", ["hold", "refuse", "warn"])
def test_after_a_rejection_only_warn_lets_calls_through(action: str) -> None:
    t = Plan(action=action)
    a = t.start("a")
    t.go(t.seen(a, 0.3, rejected=True))
    call = t.asks(a)
    t.go(call)
    assert t.answered(call) == (action == "warn")
    if action == "warn":
        assert t.subscriptions.known[KEY].windows["5h"].full, "it is told all the same"
    t.later(HOUR + AFTER_RESET)
    t.go(t.due())
    again = t.asks(a)
    t.go(again)
    assert t.answered(again)
    assert t.subscriptions.known[KEY].status != "rejected"


def test_a_rejection_without_a_reset_holds_for_a_while() -> None:
    t = Plan()
    a = t.start("a")
    now = NOON + timedelta(seconds=t.at)
    seen = SeenWindow(window="5h", rejected=True)
    t.go(t.tells(a, now, [seen], organization="org", status="rejected", retry_after=7.0))
    call = t.asks(a)
    t.go(call)
    t.later(6)
    t.go(t.due())
    assert not t.answered(call)
    t.later(1 + AFTER_RESET)
    t.go(t.due())
    assert t.answered(call)


def test_the_week_has_a_bound_of_its_own_and_a_models_window_holds_that_model() -> None:
    t = Plan(keep=0.0, keep_week=0.5)
    a, b = t.start("a"), t.start("b")
    t.go(t.seen(a, 0.49, window="7d"))
    t.go(t.seen(a, 0.5, window="7d_opus"))
    sonnet, opus = t.asks(a), t.asks(b, model="claude-opus-4")
    t.go(sonnet)
    t.go(opus)
    assert (t.answered(sonnet), t.answered(opus)) == (True, False)
    t.go(t.seen(a, 0.5, window="7d"))
    late = t.asks(a)
    t.go(late)
    assert not t.answered(late)


def test_new_roots_of_a_program_that_uses_the_subscription_queue() -> None:
    t = Plan(keep=0.2)
    a = t.start("a", argv=("claude", "-p"))
    t.go(t.seen(a, 0.9))
    spawn = t.spawn("b", argv=("claude", "-p", "x"))
    t.go(spawn)
    (b,) = [run for run in t.machine.tree if run.name == "b"]
    t.go(t.committed(b.id))
    assert b.status is Status.QUEUED
    assert b.shown_reason is not None
    assert "90 % used" in b.shown_reason.message
    assert [run.id for run in t.subscriptions.held_by(t.subscriptions.known[KEY])] == [b.id]
    t.go(t.spawn("other", argv=("codex", "exec")))
    (other,) = [run for run in t.machine.tree if run.name == "other"]
    assert other.status is Status.ACCEPTED, "another program may use another account"
    refused = t.spawn("c", argv=("claude", "-p"), queue=False)
    t.go(refused)
    answer = t.answers[refused.token]
    assert isinstance(answer, c.SpawnRefused)
    assert "90 % used" in answer.refusal.message
    t.later(HOUR + AFTER_RESET)
    assert any(isinstance(each, c.Launch) and each.run is b for each in t.go(t.due()))


def test_a_root_that_waits_for_a_slot_waits_for_the_reset_too() -> None:
    t = Plan(keep=0.2)
    t.go(e.Reconfigured(t.at, changed(t.machine.policy, trees_per_user=1)))
    a = t.start("a", argv=("claude",))
    t.go(t.spawn("b", argv=("claude",)))
    (b,) = [run for run in t.machine.tree if run.name == "b"]
    t.go(t.committed(b.id))
    t.go(t.seen(a, 0.9))
    t.go(t.exited(a))
    assert b.status is Status.QUEUED
    assert b.window_hold is not None


def test_a_person_may_pause_what_waits_and_cannot_hurry_it() -> None:
    t = Plan(keep=0.2)
    a = t.start("a")
    t.go(t.seen(a, 0.9, left=60))
    call = t.asks(a)
    t.go(call)
    resume = t.resume(a)
    t.go(resume)
    answer = t.answers[resume.token]
    assert isinstance(answer, c.ErrorAnswer)
    assert "it goes on by itself" in answer.message
    t.go(t.pause(a))
    t.later(60 + AFTER_RESET)
    t.go(t.due())
    assert t.run(a).status is Status.PAUSED, "a person has paused it, too"
    t.go(t.resume(a))
    assert t.answered(call)


def test_the_clocks_above_a_run_that_waits_stand_still() -> None:
    t = Plan(keep=0.2)
    above, a = t.chain("night", "a")
    t.go(t.seen(a, 0.9, left=3 * HOUR))
    t.go(t.asks(a))
    before = t.run(above).clock.elapsed(t.at)
    t.later(3 * HOUR + AFTER_RESET)
    t.go(t.due())
    assert t.run(above).clock.elapsed(t.at) == before
    t.later(5)
    assert t.run(above).clock.elapsed(t.at) == before + 5


def test_what_one_users_replies_tell_holds_no_run_of_another() -> None:
    """A user's own server may name any organization, and knows the credential that it is sent."""
    t = Plan()
    ann, bob = t.start("a"), t.start("b", BOB)
    t.go(t.seen(ann, 0.1))
    told = t.go(t.seen(bob, 1.0, rejected=True, uid=BOB.uid))
    assert t.told(told, "plan_exhausted")
    calls = [t.asks(run) for run in (ann, bob)]
    for call in calls:
        t.go(call)
    assert [t.answered(call) for call in calls] == [True, False]
    (known,) = [each for each in t.subscriptions.known.values() if each.uid == ANN.uid]
    assert (known.windows["5h"].used, known.uids) == (0.1, [ANN.uid])
    t.go(t.spawn("c", argv=("x",)))
    (root,) = [run for run in t.machine.tree if run.name == "c"]
    assert root.status is Status.ACCEPTED, "a root of the first user does not wait either"


def test_an_account_of_the_operators_holds_the_runs_of_all_users() -> None:
    t = Plan()
    ann, bob = t.start("a"), t.start("b", BOB)
    t.go(t.seen(ann, 1.0, rejected=True, uid=None))
    calls = [t.asks(run) for run in (ann, bob)]
    for call in calls:
        t.go(call)
    assert [t.answered(call) for call in calls] == [False, False]


def test_a_call_to_a_server_that_is_not_believed_waits_for_no_window() -> None:
    t = Plan()
    a = t.start("a")
    t.go(t.seen(a, 1.0, rejected=True))
    call = t.asks(a, login="")
    t.go(call)
    assert t.answered(call)


def test_an_account_that_was_saved_before_accounts_had_users_is_forgotten() -> None:
    t = Plan()
    saved = [Subscription("anthropic", "old"), Subscription("anthropic", "new", ANN.uid)]
    t.subscriptions.known_before(saved, t.at, NOON)
    assert list(t.subscriptions.known) == ["anthropic/new"]


def test_less_kept_lets_go_on() -> None:
    t = Plan(keep=0.5)
    a = t.start("a")
    t.go(t.seen(a, 0.6))
    call = t.asks(a)
    t.go(call)
    assert not t.answered(call)
    t.go(
        e.Reconfigured(
            t.at,
            replace(t.machine.policy, sections={NAME: PlansConfig(keep=0.3)}),
        )
    )
    assert t.answered(call)


def test_growth_is_divided_by_cost_and_a_tree_has_a_limit_of_it() -> None:
    t = Plan()
    a, b = t.start("a", limits="plan=10"), t.start("b")
    t.go(t.seen(a, 0.10))
    for run, cost in ((a, 0.03), (b, 0.01)):
        call = t.asks(run)
        t.go(call)
        t.go(t.seen(run, 0.10))
        t.go(t.ended(call, cost))
    t.go(t.seen(b, 0.20))
    shares = {run: t.run(run).window_shares[f"{KEY}/5h"] for run in (a, b)}
    assert shares[a] == pytest.approx(0.075, rel=1e-3)
    assert sum(shares.values()) == pytest.approx(0.10)
    assert t.run(a).account.used(LimitKind.PLAN) == pytest.approx(7.5, rel=1e-3)
    call = t.asks(a)
    t.go(call)
    t.go(t.ended(call, 0.05))
    t.go(t.seen(b, 0.30))
    over = t.run(a)
    assert over.status is Status.STOPPING
    assert over.ending is not None
    assert over.ending.reason is not None
    assert (over.ending.reason.limit_kind, over.ending.reason.threshold) == ("plan", 10.0)


def test_a_limit_of_a_tree_counts_its_descendants_and_begins_again_after_the_reset() -> None:
    t = Plan()
    a, b = t.chain("a", "b", limits="plan=50")
    t.go(t.seen(b, 0.0, left=60))
    t.go(t.seen(b, 0.4, left=60))
    assert t.run(a).account.used(LimitKind.PLAN) == pytest.approx(40)
    assert not t.run(a).window_shares, "its own share is another thing"
    t.later(60 + AFTER_RESET)
    t.go(t.due())
    assert t.run(a).account.used(LimitKind.PLAN) == 0
    assert t.run(b).window_shares[f"{KEY}/5h"] == pytest.approx(0.4)


def over_its_limit(t: Plan, limits: str = "plan=10:pause", left: float = 60) -> RunId:
    """Have a run use more of a window than its limit allows."""
    a = t.start("a", limits=limits)
    t.go(t.seen(a, 0.1, left=left))
    t.go(t.seen(a, 0.3, left=left))
    return a


@pytest.mark.parametrize("action", ["pause", "request_increase"])
def test_what_a_limit_of_the_window_has_paused_goes_on_at_its_reset(action: str) -> None:
    t = Plan()
    a = over_its_limit(t, f"plan=10:{action}")
    assert t.run(a).status is Status.PAUSED
    reason = t.run(a).shown_reason
    assert reason is not None
    assert reason.message.endswith("; it goes on when the window is reset")
    call = t.asks(a)
    t.go(call)
    assert not t.answered(call)
    t.later(60 + AFTER_RESET)
    told = t.go(t.due())
    assert (t.run(a).status, t.run(a).shown_reason) == (Status.RUNNING, None)
    assert c.Thaw(a) in told
    t.later(2)
    t.go(t.fired(a, "calls"))
    assert t.answered(call)
    t.go(t.seen(a, 0.05, left=600))
    t.go(t.seen(a, 0.2, left=600))
    assert t.run(a).status is Status.PAUSED, "the limit begins again"


def test_a_run_that_a_person_or_another_limit_holds_too_does_not_go_on_at_the_reset() -> None:
    for is_paused_first in (False, True):
        t = Plan()
        if is_paused_first:
            a = t.start("a", limits="plan=10:pause")
            t.go(t.seen(a, 0.1, left=60))
            t.go(t.pause(a))
            t.go(t.seen(a, 0.3, left=60))
            assert t.run(a).limit_hold is not None
        else:
            a = over_its_limit(t)
            t.go(t.pause(a))
        t.later(60 + AFTER_RESET)
        t.go(t.due())
        assert (t.run(a).status, t.run(a).limit_hold) == (Status.PAUSED, None)
        t.go(t.resume(a))
        assert t.run(a).status is Status.RUNNING
    other = Plan()
    b = over_its_limit(other, "plan=10:pause messages=1:pause")
    other.go(e.UseSeen(other.at, b, "stream", use(messages=2)))
    other.later(60 + AFTER_RESET)
    other.go(other.due())
    run = other.run(b)
    assert (run.status, run.limit_hold and run.limit_hold.kind) == (Status.PAUSED, "messages")


def test_what_a_limit_of_the_window_has_paused_waits_for_its_reset_however_long() -> None:
    t = Plan()
    a = over_its_limit(t, left=5 * HOUR)
    t.later(t.machine.policy.limits.pause_max)
    t.go(t.fired(a, "pause_max"))
    assert t.run(a).status is Status.PAUSED
    t.go(t.due())
    assert t.run(a).status is Status.RUNNING


def test_a_window_that_is_renewed_early_begins_the_limit_again() -> None:
    t = Plan()
    a = over_its_limit(t, left=HOUR)
    b = t.start("b")
    t.later(100)
    t.go(t.seen(b, 0.0, left=5 * HOUR))
    assert t.run(a).account.used(LimitKind.PLAN) == 0
    assert t.run(a).status is Status.RUNNING


def test_a_renewed_credential_is_of_the_same_account_once_a_reply_says_so() -> None:
    t = Plan(keep=0.2)
    a, b = t.start("a"), t.start("b")
    t.go(t.seen(a, 0.9))
    held = t.asks(a, login="renewed")
    t.go(held)
    assert not t.answered(held), "its earlier calls tell which account a run uses"
    first = t.asks(b, login="renewed")
    t.go(first)
    assert t.answered(first), "the first call decides"
    t.go(t.seen(b, 0.9, login="renewed"))
    second = t.asks(b, login="renewed")
    t.go(second)
    assert not t.answered(second)
    assert len(t.subscriptions.known) == 1


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 1000)), min_size=1, max_size=40),
    st.floats(0, 1e6),
    st.floats(0, SPREAD),
)
def test_turns_are_within_a_minute_by_priority_and_the_first_is_now(
    waiting: list[tuple[int, float]], now: float, within: float
) -> None:
    turns = spread(waiting, now, within)
    assert min(turns) == now
    assert max(turns) <= now + within
    order = sorted(zip(turns, waiting, strict=True), key=lambda each: each[0])
    if within > 1 and now < 1e5:
        ranks = [(-priority, since) for _, (priority, since) in order]
        assert ranks == sorted(ranks)


def test_a_reply_that_was_overtaken_is_no_news() -> None:
    t = Plan(keep=0.2)
    a, b = t.start("a"), t.start("b")
    t.go(t.seen(a, 0.10))
    t.go(t.seen(a, 0.20))
    t.later(1)
    t.go(t.seen(b, 0.14))
    t.go(t.seen(b, 0.20))
    window = t.subscriptions.known[KEY].windows["5h"]
    assert window.used == 0.2
    assert sum(t.run(a).window_shares.values()) == pytest.approx(0.1)
    assert not t.run(b).window_shares
    t.go(t.seen(a, 0.2, rejected=True))
    t.later(1)
    t.go(t.seen(b, 0.2))
    assert window.rejected, "what came a moment later was sent before"
    t.later(100)
    t.go(t.seen(b, 0.02))
    assert (window.used, window.rejected) == (0.02, False), "the provider has given more"


def test_a_window_that_the_provider_has_renewed_early_is_believed_at_once() -> None:
    window = Window("5h")
    window.hear(SeenWindow(window="5h", used_ratio=0.9, resets_at=HOUR), 0.0, None)
    window.hear(SeenWindow(window="5h", used_ratio=0.1, resets_at=5 * HOUR), 1.0, None)
    assert (window.used, window.resets_at) == (0.1, 5 * HOUR)


def test_a_refusal_is_over_when_its_window_has_been_renewed_early() -> None:
    """As a person does with a banked reset."""
    t = Plan()
    a, b = t.start("a"), t.start("b")
    t.go(t.seen(a, 1.0, rejected=True))
    call = t.asks(a)
    t.go(call)
    assert not t.answered(call)
    now = NOON + timedelta(seconds=t.at)
    renewed = SeenWindow(window="5h", used_ratio=0.02, resets_at=now.timestamp() + 5 * HOUR)
    told = t.go(t.tells(b, now, [renewed], organization="org", banked_resets=1))
    assert t.told(told, "plan_reset") == [
        f"the 5h window of {KEY} has been renewed before its reset: 2 % is used after "
        "100 %; banked resets left: 1"
    ]
    assert t.answered(call)


def test_it_is_told_once_that_credits_pay() -> None:
    t = Plan()
    a = t.start("a")
    windows = [SeenWindow(window="5h", used_ratio=1.0)]

    def credits_told(*, on_credits: bool | None) -> list[str]:
        now = NOON + timedelta(seconds=t.at)
        reply = t.tells(a, now, windows, organization="org", credits="25.50", on_credits=on_credits)
        return t.told(t.go(reply), "plan_credits")

    assert credits_told(on_credits=True) == [
        f"credits pay for calls of {KEY} because a window is used up; 25.50 is left"
    ]
    assert not credits_told(on_credits=True)
    assert not credits_told(on_credits=None)
    assert not credits_told(on_credits=False)
    assert credits_told(on_credits=True)


@pytest.mark.parametrize(
    ("window", "seconds", "left", "held_for"),
    [
        ("5h", None, 399 * 24 * HOUR, 60.0),
        ("5h", None, 5 * HOUR, 5 * HOUR),
        ("5h", None, 6 * HOUR, 60.0),
        ("7d_opus", None, 7 * 24 * HOUR, 7 * 24 * HOUR),
        ("7d_opus", None, 8 * 24 * HOUR, 60.0),
        ("1h", None, 2 * HOUR, 60.0),
        ("30d", None, 30 * 24 * HOUR, 30 * 24 * HOUR),
        ("primary", 7 * 24 * HOUR, 7 * 24 * HOUR, 7 * 24 * HOUR),
        ("primary", 900 * 24 * HOUR, 399 * 24 * HOUR, 60.0),
    ],
)
def test_no_refusal_holds_for_longer_than_its_window_is_long(
    window: str, seconds: float | None, left: float, held_for: float
) -> None:
    known = Window(window)
    seen = SeenWindow(window=window, resets_at=left, seconds=seconds, rejected=True)
    known.hear(seen, 0.0, retry_after=left)
    assert known.rejected
    assert known.resets_at == pytest.approx(held_for, abs=0.1)


def test_a_reset_that_moves_hides_no_use() -> None:
    """A provider may align its windows, and a reset that was told once may have been wrong."""
    window = Window("5h")
    window.hear(SeenWindow(window="5h", used_ratio=0.2, resets_at=5 * HOUR), 0.0, None)
    assert (
        window.hear(SeenWindow(window="5h", used_ratio=0.75, resets_at=2 * HOUR), 1.0, None) == 0
    ), "of which window?"
    assert (window.used, window.resets_at) == (0.75, 2 * HOUR)
    assert window.bars(0.3)
    assert window.hear(
        SeenWindow(window="5h", used_ratio=0.8, resets_at=2 * HOUR), 2.0, None
    ) == pytest.approx(0.05)


def test_a_provider_that_corrects_itself_is_believed_after_a_minute_of_calls() -> None:
    window = Window("5h")
    window.hear(SeenWindow(window="5h", used_ratio=0.9, resets_at=HOUR), 0.0, None)
    for second in range(1, 60):
        window.hear(SeenWindow(window="5h", used_ratio=0.85, resets_at=HOUR), second, None)
        assert window.used == 0.9
    window.hear(SeenWindow(window="5h", used_ratio=0.85, resets_at=HOUR), 60.0, None)
    assert window.used == 0.85


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12).flatmap(
        lambda grown: st.tuples(st.just(grown), st.permutations(grown))
    )
)
def test_however_replies_overtake_each_other_no_growth_is_counted_twice(
    made: tuple[list[int], list[int]],
) -> None:
    """Calls that take so many thousandths of a window each, whose replies come in another order,
    within a minute."""
    grown, order = made
    figures = {each: sum(grown[: index + 1]) / 1000 for index, each in enumerate(grown)}
    window = Window("5h", base=0.0)
    counted = sum(
        window.hear(SeenWindow(window="5h", used_ratio=figures[each], resets_at=HOUR), second, None)
        for second, each in enumerate(order)
    )
    assert counted == pytest.approx(max(figures.values()))


def test_a_window_whose_reset_is_not_told_bars_no_longer_than_it_lasts() -> None:
    t = Plan(keep=0.2)
    a = t.start("a")
    t.go(t.seen(a, 0.9, left=None))
    held = t.asks(a)
    t.go(held)
    assert not t.answered(held)
    t.later(5 * HOUR - 60)
    t.go(t.due())
    assert t.run(a).status is Status.PAUSED
    t.later(60 + AFTER_RESET)
    t.go(t.due())
    assert t.run(a).status is Status.RUNNING


def test_a_forecast_is_of_the_present_rate() -> None:
    window = Window("5h")
    for minute in range(31):
        window.hear(
            SeenWindow(window="5h", used_ratio=0.2 + 0.01 * minute, resets_at=4 * HOUR),
            60.0 * minute,
            None,
        )
    assert window.empty_at(1800.0) == pytest.approx(1800 + 50 * 60)
    assert window.empty_at(1800.0 + HOUR) is None, (
        "nothing was used for an hour, so it lasts until the reset"
    )


def test_a_reset_over_a_day_away_has_its_date() -> None:
    noon = NOON.timestamp()
    assert (clock(noon + HOUR, noon, NOON.tzinfo), clock(noon + 30 * HOUR, noon, NOON.tzinfo)) == (
        "13:00",
        "2026-06-02 18:00",
    )


def test_a_window_that_will_be_empty_before_its_reset_is_told_to_who_watches() -> None:
    found: list[Reading] = []

    class Looker:
        """Notes the first reading that is above its threshold."""

        def __init__(self, context: Context) -> None:
            self.context = context

        def look(self, runs: Collection[Run], at: float, *, at_all: bool) -> None:
            assert not any(run.status.terminal for run in runs)
            if at_all and not found:
                told = {k: r for each in self.context.readings for k, r in each(0.8, at).items()}
                found.extend(each for each in told.values() if each.above)

        def ending(self, run: Run) -> None:
            """Nothing is kept of it."""

    t = Plan()
    t.machine = Machine(t.machine.policy, barrier=Subscriptions, watchers={"looker": Looker})
    a = t.start("a")
    for minute in range(40):
        t.go(t.seen(a, 0.02 * minute, left=4 * HOUR - t.at))
        t.later(60)
    (reading,) = found
    assert "is empty at 12:" in reading.message


def test_a_window_tells_its_reset_as_a_hold() -> None:
    t = Plan(keep=0.2)
    a = t.start("a", argv=("claude", "-p"))
    t.go(t.seen(a, 0.9))
    t.go(t.spawn("b", argv=("claude", "-p", "x")))
    t.go(t.committed("a2"))
    (queued,) = t.machine.holds(t.run("a2"), t.at, moment)
    assert (queued.kind, queued.blocks, queued.command) == ("plan", "start", "sfactl plans")
    assert queued.until == moment(3600)
    t.go(t.asks(a))
    (paused,) = t.machine.holds(t.run(a), t.at, moment)
    assert (paused.kind, paused.blocks, paused.until) == ("plan", "processes", moment(3600))


STEP = st.one_of(
    st.tuples(st.just("call"), st.integers(0, 2)),
    st.tuples(st.just("reply"), st.integers(0, 9)),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("person"), st.integers(1, 20)),
    st.tuples(st.just("time"), st.integers(1, 90)),
    st.tuples(st.just("reject"), st.integers(0, 9)),
)


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(STEP, max_size=60), st.sampled_from([0.0, 0.2, 0.5]))
def test_no_call_above_the_bound_and_no_share_above_the_growth(
    steps: list[tuple[str, int]], keep: float
) -> None:
    """A provider with a window of 100 s, of which each call takes 3 %, and the person takes
    some."""
    t = Plan(keep=keep)
    runs = [t.start(name) for name in "abc"]
    open_: list[e.CallAsked] = []
    replied: set[int] = set()
    used, ends, grown, rejected = 0.0, t.at + 100, 0.0, False
    told: float | None = None
    waiting: list[e.CallAsked] = []

    def renew() -> None:
        nonlocal used, ends, told, rejected
        if t.at >= ends:
            used, ends, told, rejected = 0.0, t.at + 100, None, False

    def check(before: set[int]) -> None:
        nonlocal used
        for call in [each for each in waiting if t.answered(each)]:
            assert call.token in before or told is None or told < 1 - keep, (
                "a call goes out above what is kept"
            )
            assert not rejected
            waiting.remove(call)
            open_.append(call)
            used = min(1.0, used + 0.03)

    for what, number in steps:
        renew()
        before = {each.token for each in open_}
        if what == "call":
            call = t.asks(runs[number])
            waiting.append(call)
            t.go(call)
        elif what in ("reply", "reject") and open_:
            call = open_[number % len(open_)]
            if call.token not in replied:
                replied.add(call.token)
                grown += used - (told or 0.0) if told is None or used > told else 0.0
                told, rejected = used, what == "reject"
                t.go(t.seen(call.request.run, used, left=ends - t.at, rejected=rejected))
        elif what == "end" and open_:
            call = open_.pop(number % len(open_))
            t.go(t.ended(call, 0.01 * (1 + number)))
        elif what == "person":
            used = min(1.0, used + number / 100)
        elif what == "time":
            t.later(number)
            renew()
            t.go(t.due())
            for run in runs:
                t.go(t.fired(run, "calls"))
        check(before)
        shares = Counter[str]()
        for run in runs:
            shares.update(t.run(run).window_shares)
        assert sum(shares.values()) <= grown + 1e-9


def test_a_reply_that_comes_after_the_reset_is_not_divided_once_more() -> None:
    t = Plan()
    a = t.start("a")
    t.go(t.seen(a, 0.10, left=10))
    t.go(t.seen(a, 0.30, left=10))
    t.later(11)
    t.go(t.due())
    t.go(t.seen(a, 0.40, left=-1))
    assert t.run(a).window_shares[f"{KEY}/5h"] == pytest.approx(0.2)
    t.go(t.seen(a, 0.05, left=100))
    t.go(t.seen(a, 0.40, left=-1))
    (known,) = t.subscriptions.known.values()
    assert known.windows["5h"].used == 0.05, "what is known of the next window stays"


def test_a_reply_of_before_the_reset_that_the_gateway_tells_after_it_is_not_divided_once_more() -> (
    None
):
    """A gateway that waits for its daemon keeps what it has to tell, and the daemon knows at once
    that the window is over."""
    t = Plan()
    a = t.start("a")
    t.go(t.seen(a, 0.10, left=10))
    t.go(t.seen(a, 0.30, left=10))
    before, ends = NOON + timedelta(seconds=t.at + 5), NOON.timestamp() + t.at + 10
    t.later(11)
    t.go(t.due())
    late = SeenWindow(window="5h", used_ratio=0.40, resets_at=ends)
    t.go(t.tells(a, before, [late], organization="org"))
    assert t.run(a).window_shares[f"{KEY}/5h"] == pytest.approx(0.2)
    t.go(t.seen(a, 0.05, left=100))
    assert t.run(a).window_shares[f"{KEY}/5h"] == pytest.approx(0.25)


def test_what_another_node_tells_is_nobodys_share_and_no_older_news() -> None:
    t, other = Plan(keep=0.5), Plan()
    a, there = t.start("a"), other.start("a")
    t.go(t.seen(a, 0.10))
    other.later(60)
    t.later(60)
    other.go(other.seen(there, 0.60))
    (plan,) = (each.shared() for each in other.subscriptions.known.values())
    assert t.subscriptions.is_news(plan)
    time = datetime.fromtimestamp(plan.heard_at, UTC)
    t.go(
        t.tells(
            "", time, plan.windows, login=plan.login, organization=plan.organization, uid=plan.uid
        )
    )
    assert not t.subscriptions.is_news(plan)
    assert not t.run(a).window_shares
    call = t.asks(a)
    t.go(call)
    assert not t.answered(call), "the window is used by other nodes beyond what agents may"


@pytest.mark.parametrize("left", [9e11, 1e300, float("inf"), float("nan"), -1e300])
@pytest.mark.parametrize("rejected", [True, False])
def test_a_reset_that_no_window_can_have_is_not_believed(left: float, *, rejected: bool) -> None:
    t = Plan(keep=0.2)
    a = t.start("a")
    t.go(t.seen(a, 0.9, left=left, rejected=rejected))
    known = t.subscriptions.known[KEY].windows["5h"]
    assert known.resets_at in (None, (NOON + timedelta(seconds=t.at)).timestamp() + 60)
    again = t.seen(a, 0.95, rejected=rejected)
    t.go(replace(again, told=replace(again.told, retry_after=9e11)))
    assert known.used == 0.95
    assert t.go(t.due())


@pytest.mark.parametrize("name", ["5h", "7d", "7d_opus", "primary", "secondary", "30d"])
@pytest.mark.parametrize("rejected", [True, False])
def test_a_reset_is_heard_up_to_the_length_of_its_window(name: str, *, rejected: bool) -> None:
    """Not only one beyond the calendar: in eight days no window of five hours is reset, and until
    then it would bar its agents."""
    now = 1_700_000_000.0
    latest = now + Window(name).length + CLOCKS_DIFFER
    for resets_at, heard in ((latest, latest), (latest + 1, None)):
        window = Window(name)
        seen = SeenWindow(window=name, used_ratio=1.0, resets_at=resets_at, rejected=rejected)
        window.hear(seen, now, None)
        untold = now + UNTOLD if rejected else None
        assert window.resets_at == (heard or untold)
        assert not window.over(now)
    # as an earlier version may have saved it
    saved = Window(name, used=1.0, resets_at=latest + 1, heard_at=now, rejected=rejected)
    assert saved.over(now)
    assert not Window(name, used=1.0, resets_at=latest, heard_at=now).over(now)


def test_a_reset_that_no_window_can_have_is_forgotten_if_it_was_saved() -> None:
    t = Plan(keep=0.2)
    a = t.start("a")
    t.go(t.seen(a, 0.9))
    known = t.subscriptions.known[KEY].windows["5h"]
    known.resets_at = 9e11
    t.go(t.due())
    assert known.used is None


def test_a_forecast_beyond_the_calendar_is_none() -> None:
    window = Window("5h")
    window.hear(SeenWindow(window="5h", used_ratio=0.1), 0.0, None)
    window.hear(SeenWindow(window="5h", used_ratio=0.100001), 100 * 86400.0, None)
    assert window.empty_at(100 * 86400.0) is None


def test_what_was_heard_before_a_wrong_clock_was_set_hides_no_news() -> None:
    t = Plan(keep=0.2)
    a = t.start("a")
    later = t.seen(a, 0.1)
    ahead = later.time + timedelta(days=3650)
    t.go(replace(t.due(), time=ahead))
    t.go(replace(later, time=ahead))
    assert t.subscriptions.known[KEY].heard_at == ahead.timestamp()
    t.go(t.due())
    t.go(t.seen(a, 0.9))
    assert t.subscriptions.known[KEY].windows["5h"].used == 0.9
    call = t.asks(a)
    t.go(call)
    assert not t.answered(call)
