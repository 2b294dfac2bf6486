"""The half of it in the core: holds or refuses calls and roots where too little of a window is left
for the person, lets them go on after its reset, and divides what a window has grown among the runs
that have used it. It is pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from math import inf
from typing import Literal

from msgspec import Struct

from ...core import commands as c
from ...core import events as e
from ...core.barring import Barrier
from ...core.context import Reading
from ...core.limits.enforcement import holding
from ...core.machine import Components
from ...core.state.naming import program_name
from ...core.state.run import Run, WindowHold
from ...protocol import types
from ...protocol.event_types import EventType
from ...protocol.known import provider_of
from ...protocol.requests.gateway import AdmitCall, EndCall, SeeWindows
from ...protocol.requests.windows import Provider, SeenWindow, SharedWindows
from ...protocol.types import LimitKind, RunId, Severity, Status
from .feature import NAME, Kept, PlansConfig
from .windows import (
    AFTER_RESET,
    MOST_WINDOWS,
    NO_USER,
    OVERTAKEN,
    Subscription,
    Window,
    account_of,
    caller,
    clock,
    events_of,
    percent,
    remember,
    sentence,
    spread,
    spread_of,
)

LOOK_AGAIN, LOOK_AGAIN_HOLDING = 600.0, 60.0
"""Seconds at most between two looks at the calendar, and while a run waits for it: the machine may
sleep, or its clock be set."""
MOST_SUBSCRIPTIONS = 1000
"""More than that many accounts are invented. The one that was not heard of for the longest time is
forgotten."""


class WindowBar(Struct, frozen=True):
    """Why a call, or a root, has to wait for a reset."""

    subscription: str
    window: Window
    keep: float
    action: Literal["hold", "refuse"]
    message: str
    model: str | None
    of: Subscriptions

    def hold(self, run: Run, at: float) -> None:
        self.of.hold(run, self, at)

    def queue(self, root: Run, at: float) -> None:
        self.of.queue(root, self, at)


class Subscriptions(Barrier):
    def __init__(self, components: Components) -> None:
        self._ctx, self._lifecycle = components.context, components.lifecycle
        self._pausing, self._limit_holds = components.pausing, components.limit_holds
        self._limits = components.limits
        self._ctx.readings.append(self._measured)
        self.known: dict[str, Subscription] = {}
        """By their keys."""
        self.held: dict[RunId, Run] = {}
        self.unsaved: dict[str, Subscription] = {}
        """Of which more is known than when this was emptied."""
        self._offset = 0.0
        """Unix time less the core's clock."""
        self._zone: tzinfo = UTC
        self._due: float | None = None
        """When `Reminded` will be fed."""

    # ---- what is heard

    def known_before(
        self, subscriptions: Iterable[Subscription], at: float, time: datetime
    ) -> None:
        """Continue with what an earlier daemon knew. `look` arms what follows. `time`: `at`,
        in the zone in which people are told of times."""
        self._zone = time.tzinfo or self._zone
        self.tell_time(at, time)
        before = {each.key: each for each in subscriptions if each.uid != NO_USER}
        self.known = before | self.known
        self._ctx.measured |= bool(self.known)

    def tell_time(self, at: float, time: datetime) -> None:
        """Learn which moment of the calendar `at` is."""
        self._offset = time.timestamp() - at

    def seen(self, ev: e.WindowsSeen) -> None:
        """Take what a reply tells. What is older than what is known is not news: two gateways may
        tell in another order."""
        told, now = ev.told, ev.time.timestamp()
        self._zone, self._offset = ev.time.tzinfo or self._zone, ev.unix_time - ev.at
        run = self._ctx.tree.get(told.run)
        found = self._subscription_of(told, ev.uid, run)
        if found is None:
            return
        self._ctx.measured = True
        if run is not None:
            self._note_user(found, run)
        # the clock was wrong then, and has been set since
        if found.heard_at > max(now, ev.at + self._offset) + OVERTAKEN:
            found.heard_at, found.windows = now, {}
        if now >= found.heard_at:
            found.heard_at = now
            found.plan_type, found.status = (
                told.plan_type or found.plan_type,
                told.status or found.status,
            )
            self._credits_seen(found, told)
            for window in found.windows.values():
                self._reset_if_over(found, window, now, ev.at)
            for seen in told.windows:
                self._window_seen(found, seen, now, run, ev)
        self._save(found)
        self.look(ev.at)

    def is_news(self, told: SharedWindows) -> bool:
        """Return whether another node knows more of a subscription."""
        account = account_of(told.uid, told.organization or told.login)
        known = self.known.get(f"{told.provider}/{account}")
        if told.organization is None:
            known = self._of_login(told.provider, told.login, told.uid) or known
        return known is None or told.heard_at > known.heard_at

    def due(self, ev: e.Reminded) -> None:
        self._due = None
        self._ctx.measured |= bool(self.known)
        self.tell_time(ev.at, ev.time)
        self._zone = ev.time.tzinfo or self._zone  # daylight saving may have begun
        self.look(ev.at)

    def _save(self, found: Subscription) -> None:
        self.unsaved[found.key] = found
        self._ctx.do(c.SaveOf(NAME))

    def _subscription_of(
        self, told: SeeWindows, uid: int | None, run: Run | None
    ) -> Subscription | None:
        """Return the subscription that a reply is about. Where the organization is not named, the
        credential names it, which may be known to belong to an organization. A session file names
        neither where the run's replies have told it; `None` if they have not."""
        if not told.login and told.organization is None:
            return self.known.get(run.subscriptions.get(told.provider, "")) if run else None
        by_login = self._of_login(told.provider, told.login, uid)
        account = account_of(uid, told.organization or told.login)
        if by_login is not None and told.organization is None:
            account = by_login.account
        key = f"{told.provider}/{account}"
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= MOST_SUBSCRIPTIONS:
                del self.known[min(self.known, key=lambda each: self.known[each].heard_at)]
            found = self.known[key] = Subscription(told.provider, account, uid, told.organization)
        if told.login:
            # a person has logged in to another organization
            if by_login is not None and by_login is not found:
                by_login.logins.remove(told.login)
            remember(found.logins, told.login)
        return found

    def _of_login(self, provider: Provider, login: str, uid: int | None) -> Subscription | None:
        """Return what a user's credential, or the operator's, is known to belong to."""
        known = (
            each
            for each in self.known.values()
            if each.provider == provider and each.uid == uid and login in each.logins
        )
        return next(known, None) if login else None

    def _note_user(self, found: Subscription, run: Run) -> None:
        if run.birth.uid not in found.uids:
            found.uids.append(run.birth.uid)
        remember(found.programs, caller(run.birth.uid, _program_of(run)))
        if run.subscriptions.get(found.provider) != found.key:
            run.subscriptions[found.provider] = found.key
            self._ctx.changed(run)

    def _window_seen(
        self,
        found: Subscription,
        seen: SeenWindow,
        now: float,
        run: Run | None,
        ev: e.WindowsSeen,
    ) -> None:
        window = found.windows.get(seen.window)
        if window is None:
            if len(found.windows) >= MOST_WINDOWS:
                return
            window = found.windows[seen.window] = Window(seen.window)
        elif now < window.began_at or (
            not seen.rejected and seen.resets_at is not None and seen.resets_at <= now
        ):
            # a reply of before the reset, which comes late: its growth would be counted from 0
            return
        was_full, used_before = window.full, window.used
        grown = window.hear(seen, now, ev.told.retry_after)
        if (window.used or 0.0) < (used_before or 0.0) / 2:
            if was_full:
                self._tell_early(found, window, used_before or 0.0)
            if window is found.shorter:
                self._forget_present(found, ev.at)
        if window.over(now):
            window.reset(now)  # it tells of a window that is over
        if run is not None:
            # the call that is answered has cost something, too, which is not known yet
            window.weigh(run.id, 1)
        if grown and ev.told.run:  # else other nodes tell of it, whose runs may have used it
            self._divide(found, window, grown, ev.at)
        keep = self._policy(found.provider).kept(window.of_week)
        for what in events_of(window, keep):
            nearing = what == "nearing"
            used = percent(window.used) if window.used is not None else "all"
            words = (
                f"{used} of the {window.name} window of {found.key} is used"
                if nearing
                else self._sentence(window, keep)
            )
            self._publish(
                EventType.PLAN_NEARING if nearing else EventType.PLAN_EXHAUSTED,
                found,
                window,
                words,
                "medium",
            )

    def _tell_early(self, found: Subscription, window: Window, before: float) -> None:
        words = (
            f"the {window.name} window of {found.key} has been renewed before its reset: "
            f"{percent(window.used or 0.0)} is used after {percent(before)}"
        )
        if found.banked_resets is not None:
            words += f"; banked resets left: {found.banked_resets}"
        self._publish(EventType.PLAN_RESET, found, window, words, "low")

    def _credits_seen(self, found: Subscription, told: SeeWindows) -> None:
        """Note what a reply tells of credits and banked resets, and tell when calls begin to be
        paid by credits."""
        if told.credits is not None:
            found.credits = told.credits
        if told.banked_resets is not None:
            found.banked_resets = told.banked_resets
        if told.on_credits is None:
            return
        if told.on_credits and not found.on_credits:
            left = f"; {found.credits} is left" if found.credits is not None else ""
            self._publish(
                EventType.PLAN_CREDITS,
                found,
                None,
                f"credits pay for calls of {found.key} because a window is used up{left}",
                "medium",
            )
        found.on_credits = told.on_credits

    def _divide(self, found: Subscription, window: Window, grown: float, at: float) -> None:
        """Divide what a window has grown among the runs that had calls since it last grew. What
        runs that have ended, and the person, have used of it is nobody's share."""
        for run_id, share in window.divide(grown).items():
            run = self._ctx.tree.get(run_id)
            if run is None or not share:
                continue
            key = f"{found.key}/{window.name}"
            run.window_shares[key] = run.window_shares.get(key, 0.0) + share
            self._ctx.changed(run)
            self._ctx.used_more(run)
            if window is not found.shorter:
                continue
            for each in run.lineage:
                each.window_present[found.key] = each.window_present.get(found.key, 0.0) + share
                each.account.levels[LimitKind.PLAN] = round(
                    100 * max(each.window_present.values()), 6
                )
                self._ctx.changed(each)
            self._limits.enforce(run, at)

    # ---- who may call

    def bar(self, run: Run, asked: AdmitCall, at: float) -> WindowBar | None:
        """Return why a call has to wait, or is refused."""
        provider = provider_of(asked.api)
        if provider is None or not asked.login:
            return None
        found = self._of_login(provider, asked.login, run.birth.uid) or self._of_login(
            provider, asked.login, None
        )
        if found is None and provider in run.subscriptions:
            found = self.known.get(run.subscriptions[provider])
        return self._bar(found, asked.model, at) if found is not None else None

    def holds(self, api: str) -> bool:
        """Return whether calls in this format wait for a reset, where they must not be made before
        it."""
        provider = provider_of(api)
        return provider is not None and self._policy(provider).action == "hold"

    def bar_root(self, run: Run, at: float) -> WindowBar | None:
        """Return why a root has to wait: the subscription that its program used last for its user
        has too little left."""
        if not self.known:
            return None
        who = caller(run.birth.uid, _program_of(run))
        used = [
            each for each in self.known.values() if who in each.programs and _may_use(run, each)
        ]
        found = max(used, key=lambda each: each.heard_at, default=None)
        bar = self._bar(found, None, at, root=True) if found is not None else None
        return bar if bar is not None and bar.action == "hold" else None

    def _bar(
        self, found: Subscription, model: str | None, at: float, *, root: bool = False
    ) -> WindowBar | None:
        policy = self._policy(found.provider)
        if policy.action == "warn":
            return None
        for window in found.windows.values():
            self._reset_if_over(found, window, self._by_now(at), at)
        # a root may call other models than the one of which no more may be used
        barring = [each for each in found.barring(policy, model) if not (root and "_" in each.name)]
        if not barring:
            return None
        window = max(barring, key=lambda each: each.resets_at or inf)
        keep = policy.kept(window.of_week)
        return WindowBar(
            found.key, window, keep, policy.action, self._sentence(window, keep, at), model, self
        )

    def hold(self, run: Run, bar: WindowBar, at: float) -> None:
        """Pause a run until the window is reset. It is frozen once none of its calls is under way:
        a program that stands still does not give up, as one would that waits for hours."""
        if run.status not in {Status.RUNNING, Status.PAUSED}:
            return  # it is being launched: its call is looked at again then
        self._note_hold(run, bar, at)
        for above in run.ancestors:
            if above.status is Status.RUNNING:
                self._lifecycle.halt_clock(above, at)
                self._ctx.changed(above)
        if run.paused is None:
            self._pausing.pause(run, at, freeze=False)
        self.freeze_if_idle(run, at)
        self._arm(at)

    def queue(self, root: Run, bar: WindowBar, at: float) -> None:
        """Let a root wait that was not started."""
        self._note_hold(root, bar, at)
        self._arm(at)

    def _note_hold(self, run: Run, bar: WindowBar, at: float) -> None:
        used = None if bar.window.used is None else round(100 * bar.window.used, 2)
        reset = bar.window.resets_at
        run.window_hold = WindowHold(
            bar.subscription, bar.message, used, round(100 * (1 - bar.keep), 2), at, bar.model,
            resets_at=None if reset is None else reset - self._offset,
        )  # fmt: skip
        self.held[run.id] = run
        self._ctx.changed(run)

    def freeze_if_idle(self, run: Run, at: float) -> None:
        """Freeze what waits of a run's lineage and has no calls under way: a reply must not be
        frozen in its middle."""
        if not self.held:
            return
        for each in run.lineage:
            if each.window_hold is not None and not any(
                below.account.reservations for below in each.subtree()
            ):
                self._pausing.freeze(each, at)

    def call_ended(self, run: Run, call: EndCall, cost: int | None, at: float) -> None:
        """Count what a call has cost, for the next growth of the windows that it used."""
        provider = provider_of(call.api)
        found = (
            self.known.get(run.subscriptions.get(provider, "")) if provider is not None else None
        )
        for window in found.windows.values() if found is not None else ():
            if window.counts(call.model):
                window.weigh(run.id, max(1, cost or 0))
        self.freeze_if_idle(run, at)

    # ---- resets

    def look(self, at: float) -> None:
        """Note which windows have been reset, and let go on what waits for nothing any more and
        whose turn has come."""
        for found in self.known.values():
            for window in found.windows.values():
                self._reset_if_over(found, window, self._by_now(at), at)
        self._give_turns(at)
        for run in [each for each in self.held.values() if each.window_hold is not None]:
            hold = run.window_hold
            if hold is not None and hold.goes_on_at is not None and hold.goes_on_at <= at:
                self._go_on(run, at)
        self._arm(at)

    def _by_now(self, at: float) -> float:
        """Return up to when resets have taken place, in Unix time."""
        return at + self._offset - AFTER_RESET

    def _reset_if_over(self, found: Subscription, window: Window, now: float, at: float) -> None:
        if window.over(now):
            rejected, window_used = window.rejected, window.used
            window.reset(now)
            if found.status == "rejected" and not any(
                each.rejected for each in found.windows.values()
            ):
                found.status = None
            if window is found.shorter:
                self._forget_present(found, at)
            self._save(found)
            if rejected or window_used is not None:
                self._publish(
                    EventType.PLAN_RESET,
                    found,
                    window,
                    f"the {window.name} window of {found.key} was reset",
                    "low",
                )

    def _forget_present(self, found: Subscription, at: float) -> None:
        """What trees have used of the last window counts no more against their `plan` limits, and
        those that wait because of it go on."""
        for run in list(self._ctx.tree):
            if run.window_present.pop(found.key, None) is not None:
                run.account.levels[LimitKind.PLAN] = round(
                    100 * max(run.window_present.values(), default=0.0), 6
                )
                self._ctx.changed(run)
                active = run.limits.get(LimitKind.PLAN)
                if active is None or active.above(run.account.used(LimitKind.PLAN) or 0):
                    continue
                active.near = active.over = False
                if run.held_by is active:
                    self._release(run, at)

    def _release(self, run: Run, at: float) -> None:
        """Let a run go on that its `plan` limit has held, unless something else does."""
        self._lifecycle.release_limit_hold(run)
        paused = run.paused
        by_person = paused is not None and (paused.by_hand or paused.suspended)
        if holding(run) or not by_person:
            self._limit_holds.resume_unless_held(run, at)
            self._limits.enforce_subtree(run, at)

    def _give_turns(self, at: float) -> None:
        """Give each run that nothing bars any more its turn, and take it from those that are barred
        again."""
        free: dict[str, list[tuple[Run, WindowHold]]] = {}
        for run in self.held.values():
            hold = run.window_hold
            if hold is None:
                continue
            found = self.known.get(hold.subscription)
            bar = (
                self._bar(found, hold.model, at, root=run.status is Status.QUEUED)
                if found is not None
                else None
            )
            if bar is not None and bar.action == "hold":
                learned = hold.resets_at is None and bar.window.resets_at is not None
                if hold.message != bar.message or hold.goes_on_at is not None or learned:
                    since = hold.since  # who has waited longest goes on first, next time
                    self._note_hold(run, bar, since)
            elif hold.goes_on_at is None:
                free.setdefault(hold.subscription, []).append((run, hold))
        for key, waiting in free.items():
            windows = self.known[key].windows.values() if key in self.known else ()
            within = spread_of(windows, at + self._offset)
            turns = spread(
                [(run.root.asked.queueing.priority, hold.since) for run, hold in waiting],
                at,
                within,
            )
            for (run, hold), turn in zip(waiting, turns, strict=True):
                hold.goes_on_at = turn
                self._ctx.changed(run)

    def _go_on(self, run: Run, at: float) -> None:
        self._forget(run, at)
        self._ctx.changed(run)
        paused = run.paused
        if run.status is Status.QUEUED:
            self._ctx.released.append(run)
        elif paused is not None and not (
            paused.by_hand
            or paused.suspended
            or run.limit_hold is not None
            or run.no_money is not None
        ):
            self._pausing.resume(run, at)
            self._limits.enforce_subtree(run, at)

    def _forget(self, run: Run, at: float) -> None:
        """The run waits no more, so the clocks of those above it count again."""
        run.window_hold = None
        del self.held[run.id]
        for above in run.ancestors:
            if above.status is Status.RUNNING:
                self._lifecycle.start_clock(above, at)
                self._ctx.changed(above)

    def forget(self, ended: Iterable[Run], at: float) -> None:
        for run in ended:
            if run.id in self.held:
                self._forget(run, at)
            elif run.parent is not None:
                self.freeze_if_idle(run.parent, at)  # one of its calls was under way

    def restore(self, run: Run, at: float) -> None:
        """Continue with a run that an earlier daemon has held."""
        hold = run.window_hold
        if hold is not None and run.status in {Status.PAUSED, Status.QUEUED}:
            self.held[run.id] = run
            hold.goes_on_at = hold.resets_at = None  # of another boot's clock, perhaps
            if run.status is Status.PAUSED:
                self.freeze_if_idle(run, at)
        else:
            run.window_hold = None

    def _arm(self, at: float) -> None:
        """Have `look` called at the next reset, and the next turn."""
        resets = [
            ends_at + AFTER_RESET - self._offset
            for found in self.known.values()
            for each in found.windows.values()
            if (ends_at := each.ends_at) is not None
        ]
        turns = [
            hold.goes_on_at
            for run in self.held.values()
            if (hold := run.window_hold) is not None and hold.goes_on_at is not None
        ]
        soon = LOOK_AGAIN_HOLDING if self.held else LOOK_AGAIN
        due = max(at, min(*resets, *turns, at + soon)) if resets or turns else None
        if due is None or self._due is None or due < self._due:
            if due != self._due:
                self._ctx.do(c.Remind(NAME, "", due))
            self._due = due

    # ---- what is told

    def held_by(self, found: Subscription) -> list[Run]:
        """Return the runs that a subscription holds."""
        return [
            run
            for run in self.held.values()
            if run.window_hold is not None and run.window_hold.subscription == found.key
        ]

    def policy_of(self, found: Subscription) -> Kept:
        return self._policy(found.provider)

    def _measured(self, _share: float, at: float) -> Mapping[tuple[str, str], Reading]:
        """Return whether each window will be used up before its reset, at the present rate."""
        now = at + self._offset
        return {
            ("plan", f"{found.key}/{window.name}"): self._forecast(found, window, now)
            for found in self.known.values()
            for window in found.windows.values()
            if window.used is not None
        }

    def _forecast(self, found: Subscription, window: Window, now: float) -> Reading:
        used, empty_at = window.used or 0.0, window.empty_at(now)
        above = empty_at is not None or used >= 1
        when = clock(empty_at, now, self._zone) if empty_at is not None else "now"
        reset = (
            f", before its reset at {clock(window.resets_at, now, self._zone)}"
            if window.resets_at is not None
            else ""
        )
        words = (
            f"at this rate the {window.name} window of {found.key} is empty at {when}{reset}; "
            f"{percent(used)} is used"
        )
        return Reading(round(used, 4), 1.0, above, words)

    def _policy(self, provider: Provider) -> Kept:
        return self._ctx.policy.section(NAME, PlansConfig).of(provider)

    def _sentence(self, window: Window, keep: float, at: float | None = None) -> str:
        return sentence(
            window, keep, window.heard_at if at is None else at + self._offset, self._zone
        )

    def _publish(
        self,
        what: EventType,
        found: Subscription,
        window: Window | None,
        message: str,
        severity: Severity,
    ) -> None:
        reset = window.resets_at if window is not None else None
        event = types.Event(
            type=what,
            severity=severity,
            message=message,
            scope="user",
            provider=found.provider,
            account=found.account,
            window=window.name if window is not None else None,
            used_ratio=window.used if window is not None else None,
            resets_at=datetime.fromtimestamp(reset, UTC) if reset is not None else None,
        )
        self._ctx.do(c.Publish(event, ()))


def _may_use(run: Run, found: Subscription) -> bool:
    """Return whether a root may use a subscription: not if its environment holds a credential of
    another account."""
    login = run.asked.sources.logins.get(found.provider)
    return login is None or login in found.logins


def _program_of(run: Run) -> str:
    return program_name(run.asked.shown.argv)


barrier = Subscriptions
"""What the core makes."""
