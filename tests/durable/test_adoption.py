"""What the daemon logs of the runs that an earlier one has left."""

from __future__ import annotations

import pytest

from sfad.core import events as e
from sfad.durable.adoption import Adoption
from sfad.protocol.types import Status
from sfad.storage.ledger.rows import RunExtra
from tests.cli.samples import run


@pytest.mark.parametrize(("status", "more"), [(Status.LOST, 1), (Status.RUNNING, 0)])
def test_runs_that_are_only_recorded_are_not_counted_among_the_others(
    status: Status, more: int
) -> None:
    rows = [(run(status), RunExtra())]
    found = Adoption(e.RunsAdopted(0.0, (), "the daemon died"), [], rows, [], [], [], [])
    assert str(found) == (
        "0 runs alive and supervised again, 0 queued, 0 between two attempts, 0 ended meanwhile, "
        f"{more} more whose end was not on record"
    )
