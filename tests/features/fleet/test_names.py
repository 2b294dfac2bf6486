"""Names of runs in the fleet, and what several nodes tell as one."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from sfad.core.state.run import run_id
from sfad.features.fleet.answers.names import Names
from sfad.features.fleet.answers.sums import events_of, left_of, page_of, reached_of
from sfad.protocol import messages as m
from sfad.protocol.types import Event, FleetPlace, RunInfo, Status
from tests.cli import samples
from tests.top.test_table import NOW, info


def test_a_command_of_a_hold_names_runs_as_the_fleet_does() -> None:
    commands = {
        "sfactl resume a1 [--limit turns=N]": "sfactl resume n2/a1 [--limit turns=N]",
        "sfactl approve a1, or sfactl deny a1": "sfactl approve n2/a1, or sfactl deny n2/a1",
        "sfactl why b10": "sfactl why n2/b10",
        "sfactl resume n3/a7": "sfactl resume n3/a7",
        "sfactl calls a1": "sfactl calls n2/a1",
        "sfactl plans": "sfactl plans",
        "sfactl reload": "sfactl reload",
    }
    holds = tuple(samples.hold("person", command=command) for command in commands)
    named = Names().run("n2", samples.run(holds=holds))
    assert [each.command for each in named.holds] == list(commands.values())


def test_a_run_that_was_granted_has_the_name_that_its_giver_gave_it() -> None:
    names = Names()
    given = info(4, fleet=FleetPlace(node="n2", run=run_id(7)))
    place = FleetPlace(giver="n1", id=f"n1/{run_id(4)}", root=f"n1/{run_id(1)}", depth=2)
    assert not names.is_told_by_another("n1", given)
    there = info(7, root_id=run_id(7), depth=2, fleet=place)
    taken = names.runs("n2", [there])[0]
    assert (taken.id, taken.root_id, taken.depth) == (f"n1/{run_id(4)}", f"n1/{run_id(1)}", 2)
    assert taken.fleet is not None
    assert taken.fleet.node == "n2"
    assert names.is_told_by_another("n1", given)
    names.forget("n2")
    assert not names.is_told_by_another("n1", given)


def test_the_giver_tells_where_a_run_executes_and_how_it_has_ended() -> None:
    """A run that was lost with one node, and has begun again on another, is one run."""
    names = Names()
    place = FleetPlace(giver="n1", id=f"n1/{run_id(4)}", root=f"n1/{run_id(4)}")
    before, now = info(7, fleet=place), info(9, fleet=place)
    given = info(4, attempts=2, fleet=FleetPlace(node="n3", run=run_id(9)))
    pages = {
        "n1": m.RunList(id=0, runs=[given]),
        "n2": m.RunList(id=0, runs=[replace(before, status=Status.CANCELLED)]),
        "n3": m.RunList(id=0, runs=[now]),
    }
    (shown,) = page_of(pages, dict.fromkeys(pages, ""), names, first=True).runs
    assert shown.fleet is not None
    assert (shown.id, shown.fleet.node, shown.attempts) == (f"n1/{run_id(4)}", "n3", 2)
    assert [names.is_told_by_another(*of) for of in (("n2", before), ("n3", now))] == [True, False]
    pages["n1"].runs[0] = replace(given, status=Status.LOST)
    (lost,) = page_of(pages, dict.fromkeys(pages, ""), names, first=True).runs
    assert (lost.id, lost.status) == (f"n1/{run_id(4)}", Status.LOST)
    # without the giver, the node where it executes tells
    del pages["n1"]
    told = page_of(pages, dict.fromkeys(pages, ""), Names(), first=True).runs
    assert {run.status for run in told} == {Status.CANCELLED, now.status}


# ---- pages of lists


def past(number: int, minutes: float) -> RunInfo:
    return info(number, status=Status.COMPLETED, created_at=NOW + timedelta(minutes=minutes))


def page(runs: list[RunInfo], before: str, rows: int) -> m.RunList:
    """Return what a node answers."""
    ended = [run for run in runs if run.status.terminal and (not before or run.id < before)]
    shown = ended[-rows:]
    live = [run for run in runs if not run.status.terminal and not before]
    more = shown[0].id if len(shown) < len(ended) else None
    return m.RunList(id=0, runs=[*shown, *live], next=more)


def test_the_history_of_all_nodes_has_each_run_once_and_in_order() -> None:
    nodes = {
        "n1": [*(past(number, number) for number in range(1, 121)), info(500)],
        "n2": [past(number, 40 * number) for number in range(1, 4)],
    }
    names, cursor, shown = Names(), None, list[RunInfo]()
    for _ in range(10):
        left = left_of(cursor, ["n1", "n2", "n3"])
        asked = [node for node in nodes if left[node] != "-"]
        assert (left["n3"] == "-") == (cursor is not None)  # it did not answer for the first page
        pages = {node: page(nodes[node], left[node], 50) for node in asked}
        found = page_of(pages, left, names, first=cursor is None)
        shown += sorted(
            found.runs, key=lambda run: (not run.status.terminal, run.created_at), reverse=True
        )
        cursor = found.next
        if cursor is None:
            break
    ids = [run.id for run in shown]
    assert ids[0] == f"n1/{run_id(500)}"
    assert len(ids) == len(set(ids)) == 124
    times = [run.created_at for run in shown[1:]]
    assert times == sorted(times, reverse=True)


def test_a_node_that_goes_between_two_pages_is_asked_no_more() -> None:
    names = Names()
    runs = [past(number, number) for number in range(1, 121)]
    left = left_of(None, ["n1"])
    found = page_of({"n1": page(runs, "", 50)}, left, names, first=True)
    assert found.next is not None
    assert page_of({}, left_of(found.next, ["n1"]), names, first=False).next is None


# ---- pages of events


def event(number: int, seconds: float) -> Event:
    return Event(type="run_started", seq=number, time=NOW + timedelta(seconds=seconds))


def told(events: list[Event], after: int, rows: int) -> m.EventPage:
    later = [one for one in events if one.number > after]
    shown = later[:rows]
    reached = shown[-1].number if shown else after
    return m.EventPage(id=0, events=shown, reached=reached, more=len(shown) < len(later))


def test_events_of_all_nodes_come_once_and_by_time() -> None:
    nodes = {
        "n1": [event(number, number) for number in range(1, 60)],
        "n2": [event(number, 7 * number + 0.5) for number in range(1, 30)],
    }
    reached: dict[str, int] = {}
    shown: list[Event] = []
    while True:
        pages = {node: told(events, reached.get(node, 0), 10) for node, events in nodes.items()}
        found = events_of(pages, reached, Names(), None)
        assert reached_of(found.cursor) == reached
        shown += found.events
        if not found.more:
            break
    times = [one.time.timestamp() for one in shown if one.time]
    assert times == sorted(times)
    assert len(times) == len(shown) == len({(one.node, one.number) for one in shown}) == 59 + 29


def test_the_newest_events_are_those_of_all_nodes() -> None:
    pages = {
        "n1": told([event(number, number) for number in range(1, 9)], 0, 10),
        "n2": told([event(1, 100.0)], 0, 10),
    }
    reached: dict[str, int] = {}
    found = events_of(pages, reached, Names(), 3)
    assert [(one.node, one.number) for one in found.events] == [("n1", 7), ("n1", 8), ("n2", 1)]
    assert (reached, found.more) == ({"n1": 8, "n2": 1}, False)
