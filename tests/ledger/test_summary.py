"""The report of a period, by the models of calls where the gateway has seen these."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from sfad.core.state.access import EVERYTHING
from sfad.protocol.messages import List, Summarise
from sfad.protocol.types import RunInfo, Source, Status, Usage
from sfad.storage.ledger import OpenedLedger
from sfad.storage.ledger.queries import Page
from sfad.storage.ledger.summary import summarise

from .samples import PLAIN, call, run


def used(number: int, source: Source, cost: float, **changes: object) -> RunInfo:
    usage = Usage(source=source, cost_usd=cost, tokens=round(100 * cost))
    return run(
        number,
        **{
            "status": Status.COMPLETED,
            "usage": usage,
            "usage_by_source": {source: usage},
            **changes,
        },
    )


def test_models_are_those_of_the_calls_that_the_gateway_saw(tmp_path: Path) -> None:
    ledger = OpenedLedger(tmp_path)
    live = used(5, "gateway", 1.0, status=Status.RUNNING, model="sonnet")
    ledger.upsert(
        [
            (used(1, "gateway", 3.0, model="sonnet"), PLAIN),
            (used(2, "gateway", 1.0, status=Status.FAILED, model="sonnet"), PLAIN),
            (used(3, "stream", 5.0, model="sonnet"), PLAIN),
            (run(4, status=Status.COMPLETED), PLAIN),
            (live, PLAIN),
        ],
        [
            call(1, model="sonnet", cost_usd=2.5, input_tokens=243),
            call(2, model="haiku", cost_usd=0.5, input_tokens=43, partial=True),
            call(3, state="refused", model="opus", cost_usd=None, output_tokens=None),
            call(4, run=2, model="haiku", cost_usd=1.0, input_tokens=93),
            call(5, run=3, model="haiku"),
            call(6, run=5, model="haiku", cost_usd=1.0, input_tokens=93),
        ],
    )
    page = Page(List(id=0, since=0.0), EVERYTHING)
    found = summarise(tmp_path, page, Summarise(id=0, since=0.0, by="model"), [live])
    ledger.close()
    assert [
        (one.key, one.runs, one.failed, one.cost_usd, one.tokens, one.partial)
        for one in found.groups
    ] == [
        ("sonnet", 2, 0, 7.5, 750, False),
        ("haiku", 3, 1, 2.5, 250, True),
        (None, 1, 0, None, None, False),
    ]
    assert (found.cost_usd, found.tokens) == (10.0, 1000)


def test_a_period_ends_before_its_end_and_may_be_asked_for_its_groups_alone(tmp_path: Path) -> None:
    ledger = OpenedLedger(tmp_path)
    at = [datetime.fromtimestamp(moment, UTC) for moment in (100.0, 200.0, 300.0)]
    ledger.upsert(
        [
            (used(number, "stream", float(number), created_at=when), PLAIN)
            for number, when in enumerate(at, 1)
        ],
        [],
    )
    live = used(4, "stream", 8.0, created_at=at[1], status=Status.RUNNING)
    late = used(5, "stream", 16.0, created_at=at[2], status=Status.RUNNING)
    page = Page(List(id=0, since=100.0), EVERYTHING)
    request = Summarise(id=0, since=100.0, until=300.0)
    found = summarise(tmp_path, page, request, [live, late])
    assert (found.runs, found.cost_usd, found.until.timestamp()) == (3, 11.0, 300.0)
    brief = summarise(tmp_path, page, replace(request, groups_only=True), [live, late])
    ledger.close()
    assert brief.groups == found.groups
    assert (brief.runs, brief.cost_usd, brief.by_status, brief.failed) == (0, None, {}, [])
