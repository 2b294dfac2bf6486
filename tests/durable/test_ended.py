"""How long the spool keeps ended runs."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from sfad.core.state.run import run_id
from sfad.durable.spool import Spool
from sfad.host.clock import Timers
from sfad.host.tasks import LoopRounds
from sfad.storage.store import Store


def test_ended_runs_are_kept_until_the_ledger_is_checkpointed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfad.durable.spool.SNAPSHOTS_KEPT", 10)
    runs = [run_id(number) for number in range(1, 13)]
    file = tmp_path / "spool" / "runs"
    with closing(Spool(tmp_path / "spool", Timers(print), LoopRounds(), print)) as spool:
        spool.begin("/state")
    with closing(Store(file)) as store:
        store.write(
            {f"{kind}/{run}": b"x" for run in runs for kind in ("run", "now", "meter", "key")}
        )
    with closing(Spool(tmp_path / "spool", Timers(print), LoopRounds(), print)) as spool:

        def saved_keys() -> list[str]:
            shutil.copy(file, tmp_path / "copy")
            with closing(Store(tmp_path / "copy")) as copy:
                return list(copy.items)

        def kept() -> list[str]:
            return sorted(
                key.removeprefix("run/") for key in saved_keys() if key.startswith("run/")
            )

        spool.ended.recorded(runs[:5])
        assert kept() == runs
        spool.ended.recorded(runs[5:11])
        assert kept() == runs[1:]  # the bound for a ledger that is never checkpointed
        spool.ended.checkpointed()
        assert kept() == runs[11:]
        assert [key for key in saved_keys() if key.startswith(("now/", "meter/"))] == [
            f"now/{runs[11]}",
            f"meter/{runs[11]}",
        ]
        assert len([key for key in saved_keys() if key.startswith("key/")]) == 12
