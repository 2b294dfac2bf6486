"""What budgets were charged is known after the ledger or the spool was damaged."""

from __future__ import annotations

import struct
from datetime import datetime
from pathlib import Path

import pytest

from sfad import config as configuration
from sfad.durable.spool import Spool
from sfad.features.budgets.books import Charged, change_of, correct, period
from sfad.host.clock import Timers, wall_clock
from sfad.host.tasks import LoopRounds
from sfad.storage.ledger import OpenedLedger


def begin() -> datetime:
    """Return when the day began: not once for the module, because a suite may run at midnight."""
    return period(wall_clock().astimezone(), "day")[0]


def saved(directory: Path, *charges: float) -> Spool:
    """Return a spool in which these charges were saved, one after the other."""
    spool = Spool(directory, Timers(print), LoopRounds(), pytest.fail)
    spool.begin("/d")
    for usd in charges:
        spool.values.add_to_next(change_of("user", "ann", Charged(begin(), usd)))
        spool.journal.save(())
    spool.close()
    return Spool(directory, Timers(print), LoopRounds(), pytest.fail)


def damaged(directory: Path, *charges: float) -> Spool:
    """Return the same, but the last charge is damaged, and not merely cut short."""
    saved(directory, *charges, 0.0).close()
    file = directory / "runs"
    content = file.read_bytes()
    last = struct.pack(">d", charges[-1])
    assert content.count(last) == 1
    file.write_bytes(content.replace(last, bytes(8)))
    spool = Spool(directory, Timers(print), LoopRounds(), pytest.fail)
    assert not spool.earlier.sound
    return spool


def rebuilt(directory: Path, spool: Spool, on_record: float | None) -> tuple[float, list[str]]:
    """Return what ann's budget of 10 USD counts as charged, and the notes. Without `on_record` the
    ledger is new."""
    (directory / "sfad.toml").write_text("[budgets.users.ann]\ndaily_usd = 10")
    config = configuration.load([directory / "sfad.toml"]).config
    if on_record is not None:
        before = OpenedLedger(directory / "state")
        before.set_charged("user", "ann", begin(), on_record)
        before.close()
    ledger = OpenedLedger(directory / "state")
    notes = correct(config, ledger, spool)
    spool.close()
    charged = ledger.records.charged("user", "ann", begin())
    ledger.close()
    return charged, notes


def test_a_charge_is_in_the_spool_before_the_ledger(tmp_path: Path) -> None:
    assert rebuilt(tmp_path, saved(tmp_path / "spool", 2.0, 9.5), 2.0) == (9.5, [])
    assert rebuilt(tmp_path, saved(tmp_path / "spool"), None) == (9.5, [])


def test_an_older_charge_before_the_damage_does_not_count(tmp_path: Path) -> None:
    assert rebuilt(tmp_path, damaged(tmp_path / "spool", 2.0, 9.5), 9.5) == (9.5, [])
    again = Spool(tmp_path / "spool", Timers(print), LoopRounds(), pytest.fail)
    # the damaged file was set aside, and what stood before the damage is in its place
    assert again.earlier.sound
    assert rebuilt(tmp_path, again, None) == (9.5, [])


def test_a_budget_counts_as_exhausted_if_the_ledger_is_lost_too(tmp_path: Path) -> None:
    charged, notes = rebuilt(tmp_path, damaged(tmp_path / "spool", 2.0, 9.5), None)
    assert charged == 10
    assert "counts as exhausted" in notes[0]
