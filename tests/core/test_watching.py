"""What features watch: which runs are looked at, and when."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.context import Context, Reading
from sfad.core.machine import Components, Machine
from sfad.core.state.account import ChargedTo
from sfad.core.state.run import Run
from sfad.core.state.tree import Remembered
from sfad.protocol.types import ApiTrouble

from .transcript import Sums, Transcript, seconds

MADE: list[Looker] = []


class Looker:
    """Notes what it is shown."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.seen: list[str] = []
        MADE.append(self)

    def look(self, runs: Collection[Run], at: float, *, at_all: bool) -> None:
        self.seen += [f"{run.id} {run.status}" for run in runs]
        if at_all:
            readings = {k: r for each in self.context.readings for k, r in each(0.5, at).items()}
            self.seen.append(f"all {' '.join(whose for _, whose in readings)}".strip())
        self.context.do(c.Remind("looker", "", at + 9))

    def ending(self, run: Run) -> None:
        self.seen.append(f"{run.id} ends")


WATCHERS = {"looker": Looker}


class Measuring(Sums):
    """What is charged is measured of all runs together."""

    def __init__(self, components: Components) -> None:
        super().__init__(components)
        self._ctx = components.context
        reading = Reading(0.6, None, above=False, message="")
        self._ctx.readings.append(lambda _share, _at: {("sum", "ann"): reading})

    def charge(self, run: Run, nanos: int | None, charged_to: ChargedTo | None) -> None:
        super().charge(run, nanos, charged_to)
        self._ctx.measured = True


@pytest.fixture(autouse=True)
def none_made() -> None:
    MADE.clear()


def seen() -> list[str]:
    """What the only one has seen since the last call."""
    (looker,) = MADE
    found, looker.seen = looker.seen, []
    return found


def test_a_run_of_which_nothing_is_known_is_not_looked_at() -> None:
    t = Transcript(watchers=WATCHERS)
    a, b = t.start("a"), t.start("b")
    (t >> t.pause(a)).skip()
    (t >> t.exited(b)).skip()
    assert not MADE, "there was nothing to look at"
    (t >> t.used(a, turns=1)).skip()
    assert seen() == ["a1 paused"]
    (t >> t.exited(t.start("c"))).skip()
    assert seen() == []
    (t >> t.exited(a)).skip()
    assert seen() == ["a1 ends", "a1 completed"]


def test_runs_that_are_looked_at_without_use() -> None:
    t = Transcript(watchers=WATCHERS)
    a, b = t.start("a"), t.start("b", timeout=seconds(100))
    (t >> t.said_by_agent(a, trouble=ApiTrouble(count=1, status=529))).skip()
    assert seen() == ["a1 running"]
    (t.later(80) >> t.fired(b, "deadline")).skip()
    assert seen() == ["a2 running"]
    (t >> t.level(a, "memory", 1.0)).skip()
    assert seen() == ["a1 running"]


def test_use_is_also_that_of_the_runs_above() -> None:
    t = Transcript(watchers=WATCHERS)
    _, b = t.chain("a", "b")
    (t >> t.used(b, turns=1)).skip()
    assert seen() == ["a1 running", "a2 running"]


def test_what_is_measured_of_all_runs() -> None:
    t = Transcript(watchers=WATCHERS, purses=Measuring)
    a = t.start("a")
    assert not MADE
    (t >> t.used(a, cost=0.1)).skip()
    assert seen() == ["a1 running", "all ann"]
    (t >> e.Reconfigured(t.at, t.machine.policy)).skip()
    assert seen() == ["all ann"]
    t.later(9)
    (t >> t.reminded("looker")).skip()
    assert seen() == ["all ann"]
    (t >> t.reminded("looker", a)).skip()
    assert seen() == ["a1 running"]


def test_clocks_are_watched_if_a_feature_wants_it() -> None:
    t = Transcript(watchers=WATCHERS, watches_clocks=True)
    t.start("a", timeout=seconds(100))
    assert seen() == ["a1 running"]


def test_runs_of_an_earlier_daemon() -> None:
    t = Transcript(watchers=WATCHERS)
    a, b = t.start("a"), t.start("b")
    (t >> t.used(a, turns=1)).skip()
    runs = tuple(Remembered(t.run(each), empty=False) for each in (a, b))
    MADE.clear()
    machine = Machine(t.machine.policy, watchers=WATCHERS)
    for one in runs:
        one.run.adopt(77)
    t.machine = machine
    (t >> e.RunsAdopted(t.at, runs, "the daemon died", continued=True)).skip()
    assert seen() == ["a1 running", "a2 running", "all"]
    assert [one.run.told for one in runs] == [True, False]
