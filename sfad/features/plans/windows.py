"""Subscriptions: what is known of the windows of each, what agents may use of them, and which run
has used how much."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, tzinfo
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from ...protocol.known import LENGTHS
from ...protocol.requests.windows import Provider, SeenWindow, SharedWindows
from ...protocol.types import RunId
from .feature import Kept

DAY = 86400.0
"""Seconds. A window that is at least so long is one of the person's week (`plans.keep_week`)."""
NEARING = 0.8
SPREAD = 60.0
"""Seconds within which runs go on after a reset. If all made a call at once, all would go out
before the first reply tells what is used."""
AFTER_RESET = 0.5
"""Seconds after a reset until the first call: the provider's clock may be a little behind."""
UNTOLD = 60.0
"""Seconds for which a refusal holds that tells no reset."""
FORECAST = 1800.0
"""Seconds of the past by which the present rate is measured."""
LEAST_SEEN = 300.0
"""Seconds for which a window must have been followed before a forecast: with a known reset, a
sixtieth of the time until then, which is as long for five hours."""
OVERTAKEN = 60.0
"""Replies of parallel calls overtake each other: within so many seconds after a figure was first
told, a lower one is older, and so is a reply that says nothing of a refusal. A reset that is later
by more than this is of another window."""
LONGEST = 31 * DAY
"""Seconds. No window is longer."""
CLOCKS_DIFFER = 600.0
"""Seconds. A reset that is farther away than a window is long, and this, is not believed."""
MOST_WINDOWS = 16
MOST_RUNS = 1000
"""Runs that have a part in the next growth of a window. A thousand are a leak."""
_SLACK = 1e-9
"""A ratio is a decimal fraction: 0.8 is to be at least 1 - 0.2."""

LENGTH = 5 * 3600.0
"""Seconds of any other window, unless its name says how long it is."""
_NAMED = re.compile(r"(\d{1,3})([hd])")


class Window(Struct):
    """One window of a subscription, as it was heard of last. Times are Unix times: a reset is a
    matter of the calendar."""

    name: str
    used: float | None = None
    """`None`: unknown, as after a reset."""
    resets_at: float | None = None
    heard_at: float = 0.0
    began_at: float = 0.0
    """When it was reset last, if that is known: what was told before is of another window."""
    since: float = 0.0
    """When it was first heard of after its last reset."""
    seconds: float | None = None
    """Its length, if that was told."""
    rejected: bool = False
    rejected_at: float = 0.0
    near: bool = False
    """`plan_nearing` was published."""
    full: bool = False
    """`plan_exhausted` was published."""
    base: float | None = None
    """From where its growth counts: 0 after a reset, `None` before it is first heard of."""
    weights: dict[RunId, int] = {}
    """What the calls of each run have cost since it grew last, in nano-dollars."""
    samples: list[tuple[float, float]] = []
    """When it was heard of, and how much of it was used, as far as that is wanted for a
    forecast."""

    @property
    def length(self) -> float:
        """Seconds."""
        name = self.name.partition("_")[0]
        if self.seconds or name in LENGTHS:
            return min(self.seconds or LENGTHS[name], LONGEST)
        named = _NAMED.fullmatch(name)
        hours = int(named[1]) * (24 if named[2] == "d" else 1) if named is not None else 0
        return min(3600.0 * hours or LENGTH, LONGEST)

    @property
    def of_week(self) -> bool:
        return self.length >= DAY

    def counts(self, model: str | None) -> bool:
        """Return whether calls of a model use it: `7d_opus` is used by the models with that word in
        their names. `None`: any model."""
        of_model = self.name.partition("_")[2]
        return not of_model or model is None or of_model in model

    @property
    def ends_at(self) -> float | None:
        """When what is known of it is known no more: at its reset; at the end of its length if no
        reset was told, else it would bar its agents for good."""
        return (
            self.resets_at
            if self.resets_at is not None or self.used is None
            else self.heard_at + self.length
        )

    def over(self, now: float) -> bool:
        """Return whether it has ended. An end that no window can have is none, as an earlier
        version may have saved it."""
        return self.ends_at is not None and (
            self.ends_at <= now or self._is_too_far(self.ends_at, now)
        )

    def _is_too_far(self, moment: float, now: float) -> bool:
        return not moment <= now + self.length + CLOCKS_DIFFER  # so is what is no number

    def reset(self, now: float) -> None:
        self.began_at = min(self.ends_at or self.began_at, now)
        self.used = self.resets_at = None
        self.base = 0.0
        self.rejected = self.near = self.full = False
        self.samples = []

    def bars(self, keep: float) -> bool:
        """Return whether agents may use no more of it."""
        return self.rejected or (self.used is not None and self.used >= 1 - keep - _SLACK)

    def seen(self) -> SeenWindow:
        """Return it as if it had just been heard of."""
        return SeenWindow(
            window=self.name,
            used_ratio=self.used,
            resets_at=self.resets_at,
            seconds=self.seconds,
            rejected=self.rejected,
        )

    def hear(self, seen: SeenWindow, now: float, retry_after: float | None) -> float:
        """Take what a reply says of it. Return how much it has grown since it was heard of last."""
        self.seconds = seen.seconds or self.seconds
        if seen.resets_at is not None and self._is_too_far(seen.resets_at, now):
            seen = replace(seen, resets_at=None)
        if self.used is None and not self.rejected:
            self.since = now
        older = self._is_older(seen, now)
        if (
            seen.resets_at is not None
            and self.resets_at is not None
            and seen.resets_at < self.resets_at - OVERTAKEN
            and not older
        ):
            # of another window than its growth was counted in; that agents stop too early is the
            # lesser harm
            self.base = None
        is_next = (
            seen.resets_at is not None
            and self.resets_at is not None
            and seen.resets_at > self.resets_at + OVERTAKEN
        )
        self.heard_at = now
        self.resets_at = (
            seen.resets_at if seen.resets_at is not None and not older else self.resets_at
        )
        if seen.rejected and (self.resets_at is None or self.resets_at <= now):
            self.resets_at = now + (
                retry_after if retry_after and retry_after <= self.length else UNTOLD
            )
        if seen.rejected:
            self.rejected, self.rejected_at = True, now
        elif is_next or now - self.rejected_at >= OVERTAKEN:
            self.rejected = False
        if seen.used_ratio is None or older:
            return 0.0
        before, self.used = self.used, seen.used_ratio
        # the provider has reset it early, or has corrected itself
        if before is not None and seen.used_ratio < before:
            self.samples, self.base = [], seen.used_ratio
            self.near = self.full = False
        if not self.samples or self.samples[-1][1] != self.used:
            self.samples.append((now, self.used))
        while len(self.samples) > 2 and self.samples[1][0] < now - FORECAST:
            del self.samples[0]
        grown = max(0.0, self.used - self.base) if self.base is not None else 0.0
        self.base = max(self.used, self.base or 0.0)
        return grown

    def _is_older(self, seen: SeenWindow, now: float) -> bool:
        """Return whether a reply was sent before the one that told of the present figure."""
        if self.used is None or seen.used_ratio is None or now - self.samples[-1][0] >= OVERTAKEN:
            return False
        later = (
            seen.resets_at - self.resets_at
            if seen.resets_at is not None and self.resets_at is not None
            else 0.0
        )
        return later <= OVERTAKEN and seen.used_ratio < self.used

    def weigh(self, run: RunId, cost: int) -> None:
        if run in self.weights or len(self.weights) < MOST_RUNS:
            self.weights[run] = self.weights.get(run, 0) + cost

    def divide(self, grown: float) -> dict[RunId, float]:
        """Return what each run has of a growth, by what its calls have cost since the last one."""
        total = sum(self.weights.values())
        parts = (
            {run: grown * weight / total for run, weight in self.weights.items()} if total else {}
        )
        self.weights = {}
        return parts

    def empty_at(self, now: float) -> float | None:
        """Return when it is used up if it grows as within the last half hour; `None` if its reset
        comes before."""
        if self.used is None or len(self.samples) < 2:
            return None
        began, ratio = self.samples[0]
        if (
            now - began
            < (self.resets_at - now if self.resets_at is not None else LEAST_SEEN * 60) / 60
        ):
            return None  # a burst of calls is no rate
        rate = (self.used - ratio) / max(1.0, now - began)
        at = now + (1 - self.used) / rate if rate > 0 else None
        return at if at is not None and at < (self.resets_at or now + LONGEST) else None


NO_USER = -1


class Subscription(Struct):
    """An account of a provider whose windows are known. It belongs to one user of the machine, or
    to the operator: what one user's replies tell is not believed of another's account."""

    provider: Provider
    account: str
    """As `account_of` makes it."""
    uid: int | None = NO_USER
    """Its user; `None`: the operator, whose key all users' runs may use. `NO_USER`: it was saved
    before accounts had users."""
    organization: str | None = None
    """A hash of it, where a reply has named it."""
    plan_type: str | None = None
    status: str | None = None
    heard_at: float = 0.0
    windows: dict[str, Window] = {}
    logins: list[str] = []
    """Hashes of credentials that are known to be of this account, the newest last."""
    uids: list[int] = []
    """The users whose runs have used it."""
    programs: list[str] = []
    """The agent programs that these have used it with, as `caller`."""
    on_credits: bool | None = None
    """Whether credits pay for calls because a window is used up."""
    credits: str | None = None
    """What is left of them, as the provider says."""
    banked_resets: int | None = None
    """Resets that the person may have whenever they want."""

    @property
    def key(self) -> str:
        return f"{self.provider}/{self.account}"

    def shared(self) -> SharedWindows:
        """Return what other nodes of a fleet are told of it."""
        return SharedWindows(
            provider=self.provider,
            uid=self.uid,
            login=self.logins[-1] if self.logins else "",
            organization=self.organization,
            plan_type=self.plan_type,
            status=self.status,
            heard_at=self.heard_at,
            windows=[each.seen() for each in self.windows.values()],
        )

    def barring(self, policy: Kept, model: str | None) -> list[Window]:
        """Return the windows of which agents may use no more for calls of a model."""
        return [
            each
            for each in self.windows.values()
            if each.counts(model) and each.bars(policy.kept(each.of_week))
        ]

    @property
    def shorter(self) -> Window | None:
        """The window that `--limit plan` is about."""
        if "5h" in self.windows or "primary" in self.windows:
            return self.windows.get("5h") or self.windows.get("primary")
        return next((each for each in self.windows.values() if not each.of_week), None)


def account_of(uid: int | None, identity: str) -> str:
    """Return the name of an account. `identity`: a hash of its organization or credential."""
    return sha256(f"{uid} {identity}".encode()).hexdigest()[:12]


MOST_LOGINS = 64
"""Credentials of one account that are remembered: programs renew theirs every few hours."""


def remember(known: list[str], word: str) -> bool:
    """Put a word at the end of a list that keeps the newest. Return whether that has changed it."""
    if known and known[-1] == word:
        return False
    if word in known:
        known.remove(word)
    known.append(word)
    del known[:-MOST_LOGINS]
    return True


def caller(uid: int, program: str) -> str:
    return f"{uid} {program}"


def spread(waiting: Sequence[tuple[int, float]], now: float, within: float) -> list[float]:
    """Return when each of the runs goes on that wait for a reset: one after the other, the first at
    once, by priority (higher first) and then in the order in which they began to wait. `waiting`:
    priority, and since when, of each."""
    order = sorted(range(len(waiting)), key=lambda index: (-waiting[index][0], waiting[index][1]))
    turns = {index: now + within * turn / len(waiting) for turn, index in enumerate(order)}
    return [turns[index] for index in range(len(waiting))]


def spread_of(windows: Iterable[Window], now: float) -> float:
    """Return the seconds over which runs go on: a minute, or a fifth of what is known to have been
    a whole window if that is less."""
    known = min((now - each.since for each in windows if each.since), default=SPREAD * 5)
    return min(SPREAD, max(0.0, known) / 5)


def percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def clock(moment: float, now: float, zone: tzinfo | None) -> str:
    """Return a time as people say it: `14:00`, with the date if it is over a day away."""
    local = datetime.fromtimestamp(moment, zone)
    return f"{local:%H:%M}" if abs(moment - now) <= DAY else f"{local:%Y-%m-%d %H:%M}"


def sentence(window: Window, keep: float, now: float, zone: tzinfo | None) -> str:
    """Return what bars a call: `the 5h window is 81 % used, agents may use 80 %; it resets at
    14:00`."""
    used = f"is {percent(window.used)} used" if window.used is not None else "is used up"
    if window.rejected:
        why = f"the {window.name} window {used}, and the provider refuses calls"
    else:
        why = f"the {window.name} window {used}, agents may use {percent(1 - keep)}"
    when = (
        f"it resets at {clock(window.resets_at, now, zone)}"
        if window.resets_at is not None
        else "its reset is not known"
    )
    return f"{why}; {when}"


def events_of(window: Window, keep: float) -> Iterator[str]:
    """Yield which events a window calls for now, each once between two resets: `nearing`,
    `exhausted`."""
    if not window.near and window.used is not None and window.used >= NEARING - _SLACK:
        window.near = True
        yield "nearing"
    if not window.full and window.bars(keep):
        window.full = True
        yield "exhausted"
