"""Which period it is, and what was charged in it, between config, ledger, spool and core."""

import sqlite3
from collections.abc import Callable
from datetime import date, datetime, timedelta

import msgspec
import trio
from msgspec import Struct, field
from msgspec.structs import replace

from ...config import Configuration
from ...core import events as e
from ...core.state.money import to_nanos, to_usd
from ...durable.snapshots import Changes, RetryingStore
from ...durable.spool import Spool
from ...host.clock import Timers, wall_clock
from ...protocol.texts.units import format_usd
from ...storage.ledger import Ledger, OpenedLedger
from .budgets import Budget, Budgets, Given
from .feature import NAME, BudgetsConfig
from .told import BudgetsKnown

LOOK_AGAIN_SOON = 10.0
"""Seconds until the next look, if the ledger could not be read."""
LOOK_AGAIN = 600.0
"""Seconds at most between two looks at the calendar. Setting the clock must not keep a budget from
being renewed."""


class Charged(Struct, frozen=True, array_like=True):
    """What a budget was charged in the period that began then."""

    begins: datetime
    usd: float
    partial: bool = False
    at_most: bool = False
    allowance: int = 0
    """Nano-dollars that the keeper lets this node charge."""
    given: dict[str, Given] = {}
    """What this node, as the keeper, has given to others."""


class SavedCharges(Struct, frozen=True):
    """What budgets were charged, as it is saved in the spool: `charge/SCOPE/NAME`."""

    store: RetryingStore

    def since(self, begins: datetime, scope: str, name: str) -> Charged:
        """Return what is saved of the period that began then."""
        charged = self.store.decoded(_key(scope, name), Charged)
        return charged if charged is not None and charged.begins == begins else Charged(begins, 0.0)


def _key(scope: str, name: str) -> str:
    return f"charge/{scope}/{name}"


def change_of(scope: str, name: str, charged: Charged) -> Changes:
    """Return what to save of a budget together with the next snapshot: of the run that has used
    it."""
    return {_key(scope, name): msgspec.msgpack.encode(charged)}


class BudgetBooks(Struct):
    """Tells the core the state of each budget, now and whenever a period begins. Periods are
    calendar days, weeks (from Monday) and months in the daemon's time zone."""

    known: Budgets
    ledger: Ledger
    timers: Timers
    feed: e.Feed
    trouble: Callable[[str], None]
    charges: SavedCharges
    keeper: Callable[[], str | None]
    """Returns `Budget.keeper`."""
    _config: BudgetsConfig = field(default_factory=BudgetsConfig)
    _periods: dict[tuple[str, str], datetime] = field(default_factory=dict)

    def know(self, config: BudgetsConfig) -> None:
        self._config = config
        self.look()

    def record(self, scope: str, name: str, nanos: int) -> None:
        self.ledger.charge(scope, name, self._periods[scope, name], to_usd(nanos))

    def change(self, scope: str, name: str) -> Changes:
        """Return what to save of a budget."""
        budget, begins = self.known.find(scope, name), self._periods[scope, name]
        assert budget is not None
        charged = Charged(
            begins, to_usd(budget.charged), budget.partial, budget.at_most, budget.allowance,
            budget.given,
        )  # fmt: skip
        return change_of(scope, name, charged)

    def look(self) -> None:
        """Tell the core the state of the budgets, now and when the next period begins."""
        now = wall_clock().astimezone()
        try:
            self._renew(now)
        except sqlite3.Error as error:
            self.trouble(
                f"the charges of budgets cannot be read from the ledger: {error}; "
                "they stay as they are"
            )
            self.timers.arm("budgets", trio.current_time() + LOOK_AGAIN_SOON, self.look)

    def _saved(self, budget: Budget, begin: datetime) -> Budget:
        # the ledger lags behind the spool if it could not be written when a daemon died, or when
        # this one began
        saved = self.charges.since(begin, budget.scope, budget.name)
        charged = to_nanos(
            max(saved.usd, self.ledger.records.charged(budget.scope, budget.name, begin))
        )
        found = replace(budget, charged=charged, partial=saved.partial, at_most=saved.at_most)
        return replace(found, allowance=saved.allowance, given=dict(saved.given))

    def _renew(self, now: datetime) -> None:
        configured = wanted(self._config)
        kept = {(budget.scope, budget.name): budget for budget in self.known}
        periods = {(budget.scope, budget.name): period(now, budget.period) for budget in configured}
        budgets = []
        for budget in configured:
            key = (budget.scope, budget.name)
            begin, end = periods[key]
            old = kept.get(key) if self._periods.get(key) == begin else None
            known = old if old is not None else self._saved(budget, begin)
            over = old is not None and old.over and old.used >= budget.allowed
            budgets.append(
                replace(
                    budget,
                    charged=known.charged,
                    partial=known.partial,
                    at_most=known.at_most,
                    keeper=self.keeper(),
                    allowance=known.allowance,
                    given=known.given,
                    over=over,
                    near=over,
                    begins=begin.isoformat(),
                    renews=end.isoformat(timespec="minutes"),
                    renews_at=trio.current_time() + (end - now).total_seconds(),
                )
            )
        self._periods = {key: begin for key, (begin, _) in periods.items()}
        self.feed(e.Told(trio.current_time(), BudgetsKnown(tuple(budgets))))
        if periods:
            soonest = min((end - now).total_seconds() for _, end in periods.values())
            self.timers.arm(
                "budgets", trio.current_time() + min(max(soonest, 0.1), LOOK_AGAIN), self.look
            )


def period(now: datetime, length: str) -> tuple[datetime, datetime]:
    """Return when the calendar day, week or month of `now` (local time) begins and ends."""
    # dates are converted one by one, because daylight saving may begin or end within a period
    today = now.date()
    if length == "day":
        begin, end = today, today + timedelta(days=1)
    elif length == "week":
        begin = today - timedelta(days=today.weekday())
        end = begin + timedelta(days=7)
    else:
        begin = today.replace(day=1)
        end = (begin + timedelta(days=32)).replace(day=1)
    return _midnight(begin), _midnight(end)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day).astimezone()


def correct(config: Configuration, ledger: OpenedLedger, spool: Spool) -> list[str]:
    """Correct the charges in the ledger, which was written after the spool and may be new. Return
    lines for the log."""
    section, charges = config.section(NAME, BudgetsConfig), SavedCharges(spool.values)
    try:
        return _rebuild(section, ledger, charges, sound=spool.earlier.sound)
    except sqlite3.Error as error:
        why = f"the ledger was not told what budgets were charged: {error}"
        return [f"{why}; the spool's figures count"]


def _rebuild(
    config: BudgetsConfig, ledger: OpenedLedger, charges: SavedCharges, *, sound: bool
) -> list[str]:
    """`sound`: the spool could be read in full.

    If both have lost charges, what is left of a budget is not known. It then counts as exhausted
    until its period ends or the operator raises it. Raises `sqlite3.Error`."""
    notes: list[str] = []
    for budget in wanted(config):
        begin, _ = period(wall_clock().astimezone(), budget.period)
        recorded = ledger.records.charged(budget.scope, budget.name, begin)
        lost = ledger.is_new and not sound
        # the higher one counts: the spool is older if its newest part was damaged, the ledger if a
        # copy was restored
        charged = max(
            recorded,
            charges.since(begin, budget.scope, budget.name).usd,
            to_usd(budget.allowed) if lost else 0.0,
        )
        if charged != recorded:
            ledger.set_charged(budget.scope, budget.name, begin, charged)
        if lost:
            notes.append(
                f"what the budget of {budget.scope} {budget.name} was charged since "
                f"{begin:%Y-%m-%d} is lost with the ledger: it counts as exhausted "
                f"({format_usd(to_usd(budget.allowed))} USD); set more in [budgets] to let it go on"
            )
    return notes


def wanted(config: BudgetsConfig) -> list[Budget]:
    users = [
        Budget("user", name, to_nanos(budget.daily_usd), frozenset({name}))
        for name, budget in config.users.items()
    ]
    teams = [
        Budget("team", name, to_nanos(budget.usd), frozenset(budget.members), period=budget.period)
        for name, budget in config.teams.items()
    ]
    return users + teams
