"""What is remembered of ended runs, and how long."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from sfad.core.ids import run_id
from sfad.durable import journal as module
from sfad.durable.journal import Memory
from sfad.host.timers import Timers


def test_ended_runs_are_remembered_until_the_ledger_is_checkpointed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDED", 10)
    runs = [run_id(number) for number in range(1, 13)]
    with closing(Memory(tmp_path / "spool", print)) as memory:
        memory.begin(Timers(lambda _error: None), "/state")
        memory._journal.write({f"{kind}/{run}": b"x" for run in runs for kind in ("run", "now", "meter", "key")})

        def remembered() -> list[str]:
            return sorted(key.removeprefix("run/") for key in memory._journal.items if key.startswith("run/"))

        memory.recorded(runs[:5])
        assert remembered() == runs
        memory.recorded(runs[5:11])
        assert remembered() == runs[1:]  # a ledger that is never checkpointed costs no more than so many
        memory.checkpointed()
        assert remembered() == runs[11:]
        assert [key for key in memory._journal.items if key.startswith(("now/", "meter/"))] == [
            f"now/{runs[11]}",
            f"meter/{runs[11]}",
        ]
        assert len([key for key in memory._journal.items if key.startswith("key/")]) == 12
