"""Totals of trees: each run counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfad.protocol.types import Status, Usage
from sfad.storage.ledger.rows import Used, used_by, with_totals

from .samples import PLAIN, run, started


def test_a_run_without_descendants_has_its_own_use() -> None:
    (alone,) = with_totals([run(usage=Usage(cost_usd=0.5, tokens=7))], {})
    assert (alone.total_cost_usd, alone.total_tokens, alone.total_partial) == (0.5, 7, False)
    (unknown,) = with_totals([run()], {})
    assert (unknown.total_cost_usd, unknown.total_tokens) == (None, None)


def test_each_descendant_counts_once_at_every_level() -> None:
    used = {
        "a2": Used("a1", 0.1, 10, False, False),
        "a3": Used("a2", 0.2, None, False, False),
        "a4": Used("a1", None, 1, False, False),
    }
    runs = [
        run(1, descendants=3, usage=Usage(cost_usd=1.0, tokens=100)),
        run(2, parent_id="a1", root_id="a1", descendants=1, usage=Usage(cost_usd=0.1, tokens=10)),
    ]
    top, middle = with_totals(runs, used)
    assert (top.total_cost_usd, top.total_tokens) == (1.3, 111)
    assert (middle.total_cost_usd, middle.total_tokens) == (0.3, 10)
    assert top.usage.cost_usd == 1.0


@pytest.mark.parametrize(
    "usage", [Usage(cost_usd=0.1, partial=True), Usage(cost_usd=0.1, unpriced_tokens=5)]
)
def test_a_part_that_may_grow_makes_the_total_partial(usage: Usage) -> None:
    (top,) = with_totals(
        [run(1, descendants=1, usage=Usage(cost_usd=1.0))], {"a2": used_by("a1", usage)}
    )
    assert (top.total_cost_usd, top.total_partial) == (1.1, True)


async def test_totals_include_queued_writes(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        children = [
            run(n, parent_id="a1", root_id="a1", usage=Usage(cost_usd=n / 10, tokens=n))
            for n in (2, 3)
        ]
        for info in (run(1), *children):
            ledger.admit(info, PLAIN)
        await ledger.flush()
        later = run(
            3,
            parent_id="a1",
            root_id="a1",
            usage=Usage(cost_usd=5.0, tokens=50, partial=True),
            status=Status.COMPLETED,
        )
        ledger.record(later, PLAIN)
        queued = ledger.records.used_below({"a1"})
        await ledger.flush()
        assert (
            ledger.records.used_below({"a1"})
            == queued
            == {"a2": Used("a1", 0.2, 2, False, False), "a3": Used("a1", 5.0, 50, True, False)}
        )
