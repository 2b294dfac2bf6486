"""The runs of all nodes, as the pages are told of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import pytest

from sfactl.exits import Quit
from sfactl.fleet_calls import FleetCalls
from sfactl.web.source import Nodes
from sfad.core.state.run import run_id
from sfad.protocol import messages as m
from sfad.protocol.types import FleetPlace, RunInfo, Status
from tests.top.test_table import NOW, info


class Paper:
    """A fleet that answers from lists. A node without a list does not answer."""

    own = "n1"

    def __init__(self, runs: dict[str, list[RunInfo]]) -> None:
        self.runs, self.names = runs, ["n1", "n2", "n3"]

    def each(
        self, work: Callable[[str], Any], without: Collection[str] = ()
    ) -> tuple[dict[str, Any], dict[str, str]]:
        asked = [name for name in self.names if name not in without]
        return {name: work(name) for name in asked if name in self.runs}, {
            name: "" for name in asked if name not in self.runs
        }

    def ask(self, node: str, request: m.List, _expected: object) -> m.RunList:
        ended = [
            run
            for run in self.runs[node]
            if run.status.terminal and (request.before is None or run.id < request.before)
        ]
        page = ended[-request.rows :]
        live = [
            run for run in self.runs[node] if not run.status.terminal and request.before is None
        ]
        return m.RunList(
            id=0, runs=[*page, *live], next=page[0].id if len(page) < len(ended) else None
        )


def nodes(monkeypatch: pytest.MonkeyPatch, runs: dict[str, list[RunInfo]]) -> Nodes:
    paper = Paper(runs)
    monkeypatch.setattr(
        FleetCalls,
        "ask",
        lambda _calls, node, request, expected: paper.ask(node, request, expected),
    )
    return Nodes(paper)  # type: ignore[arg-type]


def past(number: int, minutes: float) -> RunInfo:
    return info(number, status=Status.COMPLETED, created_at=NOW + timedelta(minutes=minutes))


async def test_the_history_of_all_nodes_has_each_run_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    often, seldom = (
        [past(number, number) for number in range(1, 121)],
        [past(number, 40 * number) for number in range(1, 4)],
    )
    one = nodes(monkeypatch, {"n1": [*often, info(500)], "n2": seldom})
    wanted, shown = m.List(id=0, rows=50), list[RunInfo]()
    for _ in range(10):
        page = await one.page(wanted)
        shown += sorted(
            page.runs, key=lambda run: (not run.status.terminal, run.created_at), reverse=True
        )
        if page.next is None:
            break
        wanted.before = page.next
        assert page.unanswered in (["n3"], [])  # it has no part in the next pages
    names = [run.id for run in shown]
    assert names[0] == f"n1/{run_id(500)}"
    assert len(names) == len(set(names)) == 124
    times = [run.created_at for run in shown[1:]]
    assert times == sorted(times, reverse=True)
    with pytest.raises(Quit, match="node n1"):
        await nodes(monkeypatch, {}).page(m.List(id=0))


def test_a_run_is_told_by_its_node_and_by_its_giver_when_that_has_lost_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = nodes(monkeypatch, {})
    given = info(4, fleet=FleetPlace(node="n2", run=run_id(7)))
    taken = info(7, fleet=FleetPlace(giver="n1", id=f"n1/{run_id(4)}", root=f"n1/{run_id(4)}"))

    def told(
        node: str, runs: list[RunInfo], away: Collection[str] = (), whole: bool = False
    ) -> list[tuple[str, Status]]:
        return [(run.id, run.status) for run in one.told(node, runs, set(away), whole=whole)]

    name, lost = f"n1/{run_id(4)}", info(4, status=Status.LOST, fleet=given.fleet)
    # the other has not told of it so far
    assert told("n1", [given], whole=True) == [(name, Status.RUNNING)]
    assert told("n2", [taken], whole=True) == [(name, Status.RUNNING)]
    assert told("n1", [given]) == []
    assert told("n1", [lost], away=["n2"]) == [(name, Status.LOST)]
    assert told("n2", [taken], whole=True) == [(name, Status.RUNNING)]
    assert told("n1", [lost]) == []
    assert told("n2", [], whole=True) == [(name, Status.LOST)]
