"""How long the journal keeps ended runs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from sfad.core.ids import run_id
from sfad.durable import journal as module
from sfad.durable.journal import RunJournal
from sfad.host.clock import Timers


def test_ended_runs_are_kept_until_the_ledger_is_checkpointed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDED", 10)
    runs = [run_id(number) for number in range(1, 13)]
    with closing(RunJournal(tmp_path / "spool", Timers(print), print)) as journal:
        journal.begin("/state")
        journal._store.write({f"{kind}/{run}": b"x" for run in runs for kind in ("run", "now", "meter", "key")})

        def kept() -> list[str]:
            return sorted(key.removeprefix("run/") for key in journal._items if key.startswith("run/"))

        journal.recorded(runs[:5])
        assert kept() == runs
        journal.recorded(runs[5:11])
        assert kept() == runs[1:]  # the bound for a ledger that is never checkpointed
        journal.checkpointed()
        assert kept() == runs[11:]
        assert [key for key in journal._items if key.startswith(("now/", "meter/"))] == [
            f"now/{runs[11]}",
            f"meter/{runs[11]}",
        ]
        assert len([key for key in journal._items if key.startswith("key/")]) == 12
