"""Rules for model calls beside money: which models, how often, how many at once, and tool calls
that a model repeats."""

from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from msgspec import Struct

from ...core.context import Context
from ...core.life.spending import Spending
from ...core.state.policy import Policy
from ...core.state.quotas import SlidingRate
from ...core.state.run import Run, Streak
from ...protocol.event_types import EventType
from ...protocol.types import Event, LimitKind, Repetition
from .feature import CallBounds, of

# ---- How often runs and users call models, and how many calls of each are under way
# (`gateway.per_run`, `gateway.per_user`)


MINUTE = 60.0


class Barrier(Struct, frozen=True):
    """A bound that a call would exceed."""

    key: str
    """Whose rate it is, as `Counter`s of waiting calls have it."""
    words: str
    then: str
    """When to try again, in words."""
    free_at: float | None
    """When there is room again; `None`: when another call ends."""

    @property
    def message(self) -> str:
        return f"{self.words}; {self.then}"


class _Caller(Struct, frozen=True):
    """A run or a user, as calls are counted."""

    key: str
    section: str
    words: str
    bounds: CallBounds


class CallRates:
    def __init__(self, context: Context, spending: Spending) -> None:
        self._ctx = context
        self._spending = spending
        self._rates: dict[str, SlidingRate] = {}
        """By `_Caller.key`, where a rate is bounded."""

    def barrier(self, run: Run, at: float, ahead: Counter[str]) -> Barrier | None:
        """Return the bound that one more call would exceed, the one that takes longest. `ahead`:
        calls that wait for a rate and were asked for before, by the barrier's key."""
        barriers = [
            found
            for caller in self._callers(run)
            for found in self._barriers(caller, run, at, ahead[caller.key])
        ]
        return max(barriers, key=lambda barrier: barrier.free_at or 0.0, default=None)

    def made(self, run: Run, at: float) -> None:
        for caller in self._callers(run):
            if caller.bounds.calls_per_minute is not None:
                self._rate(caller.key, caller.bounds.calls_per_minute).take(at)

    def forget(self, ended: Iterable[Run]) -> None:
        for run in ended:
            self._rates.pop(_key_of_run(run), None)

    def _callers(self, run: Run) -> Iterator[_Caller]:
        config = of(self._ctx.policy)
        if config.per_run.any:
            yield _Caller(
                _key_of_run(run), "per_run", f"run {run.id} ('{run.name}')", config.per_run
            )
        if config.per_user.any:
            yield _Caller(f"user {run.user}", "per_user", f"user {run.user}", config.per_user)

    def _barriers(self, caller: _Caller, run: Run, at: float, ahead: int) -> Iterator[Barrier]:
        most, rate = caller.bounds.concurrent_calls, caller.bounds.calls_per_minute
        if most is not None:
            count = (
                _under_way(run)
                if caller.section == "per_run"
                else self._spending.under_way.count(run.user)
            )
            if count >= most:
                bound = self._ctx.policy.where_set(f"gateway.{caller.section}.concurrent_calls")
                words = (
                    f"{caller.words} has {count} {_calls(count)} under way, "
                    f"and {bound} allows {most}"
                )
                yield Barrier(caller.key, words, "try again when one has ended", None)
        if rate is not None:
            window = self._rate(caller.key, rate)
            free_at = window.free_at(at, ahead)
            if free_at > at:
                bound = self._ctx.policy.where_set(f"gateway.{caller.section}.calls_per_minute")
                count = window.used(at)
                words = (
                    f"{caller.words} has made {count} {_calls(count)} within a minute, "
                    f"and {bound} allows {rate}"
                )
                waiting = f" ({ahead} {_calls(ahead)} already wait)" if ahead else ""
                then = f"the next is possible in {free_at - at:.0f} s"
                yield Barrier(caller.key, words + waiting, then, free_at)

    def _rate(self, key: str, limit: int) -> SlidingRate:
        rate = self._rates.setdefault(key, SlidingRate(limit, MINUTE))
        rate.limit = limit
        return rate


def _key_of_run(run: Run) -> str:
    return f"run {run.id}"


def _under_way(run: Run) -> int:
    """Return the calls of a run that are under way: each has reserved a message."""
    return run.account.reserved_by_gateway.get(LimitKind.MESSAGES, 0)


def _calls(count: int) -> str:
    return "model call" if count == 1 else "model calls"


# ---- Models that a run may call: `gateway.models` and `--model-allow`


class _Rule(Struct, frozen=True):
    patterns: tuple[str, ...]
    source: str


def forbidden_model(run: Run, model: str, policy: Policy) -> str | None:
    """Return why the run may not call a model."""
    rules = [_Rule(of(policy).models, policy.where_set("gateway.models"))]
    rules += [_Rule(each.patterns, f"--model-allow of run {each.run}") for each in run.birth.models]
    for rule in rules:
        if rule.patterns and not any(fnmatchcase(model, pattern) for pattern in rule.patterns):
            return (
                f"the model '{model}' is not one of {', '.join(rule.patterns)} ({rule.source}); "
                "use one of these"
            )
    return None


# ---- An agent whose model asks for the same tool call again and again: `run_repeating`


class Repeats(Struct, frozen=True):
    _ctx: Context

    def tools_asked_for(self, run: Run, tools: Iterable[tuple[str, str]]) -> None:
        """Count equal tool calls in a row. `tools`: name, and digest of the arguments, in the order
        of the reply."""
        for name, digest in tools:
            streak = run.streak
            if streak is None or (streak.tool, streak.digest) != (name, digest):
                run.streak = streak = Streak(name, digest)
            streak.count += 1
            if streak.count >= self._ctx.policy.limits.repeats and not streak.said:
                streak.said = True
                self._ctx.watch(run)
                self._tell(run, Repetition(tool=name, count=streak.count))

    def _tell(self, run: Run, repetition: Repetition) -> None:
        most = self._ctx.policy.limits.repeats
        where = f" in {file}" if (file := self._ctx.policy.files.get("limits.repeats")) else ""
        message = f"{repetition.sentence} (limits.repeats{where} is {most})"
        event = Event(
            type=EventType.RUN_REPEATING, severity="high", message=message, scope="run",
            limit_kind="repeats", threshold=most, used=repetition.count,
        )  # fmt: skip
        self._ctx.publish_event(event, run)
