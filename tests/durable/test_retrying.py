"""What the disk has no room for is kept and written later, the newest value of each key."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import trio
from trio.testing import MockClock

from sfad.durable import spool as module
from sfad.durable.snapshots import RETRY_EVERY, RetryingStore
from sfad.durable.spool import RunJournal
from sfad.host.clock import Timers
from sfad.host.tasks import LoopRounds
from sfad.storage.store import Store

FULL = OSError(errno.ENOSPC, "No space left on device")


class Disk:
    """A store on a disk that can be full."""

    def __init__(self, file: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trouble: list[str] = []
        self.timers = Timers(print)
        self.rounds = LoopRounds()
        self.store = RetryingStore(
            file, self.timers, self.rounds, self.trouble.append, self.trouble.append
        )
        self._patch = monkeypatch

    def write(self, *, full: bool, **changes: bytes | None) -> None:
        with self._patch.context() as patched:
            if full:
                patched.setattr(Store, "write", Mock(side_effect=FULL))
            self.store.write_soon(changes)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    with closing(Store(tmp_path / "runs")) as file:
        yield Disk(file, monkeypatch)


async def test_the_newest_values_are_written_together_with_the_next(disk: Disk) -> None:
    disk.write(full=False, a=b"1", b=b"1")
    disk.write(full=True, a=b"2")
    disk.write(full=True, a=b"3", b=None)
    assert disk.store.items == {"a": b"1", "b": b"1"}
    assert len(disk.trouble) == 1
    disk.write(full=False, c=b"1")
    assert disk.store.items == {"a": b"3", "c": b"1"}
    assert disk.store.unwritten == {}
    disk.write(full=True, a=b"4")
    assert len(disk.trouble) == 2, "it had room in between"


async def test_it_tries_again_by_itself(disk: Disk, autojump_clock: MockClock) -> None:
    disk.write(full=True, a=b"1")
    with trio.move_on_after(2 * RETRY_EVERY):
        await disk.timers.serve()
    assert disk.store.items == {"a": b"1"}
    assert len(disk.timers) == 0


async def test_a_state_that_is_as_saved_again_replaces_one_that_could_not_be_saved(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "progress_of", lambda live: live.state)
    journal = RunJournal(disk.store, Mock(), Mock())
    disk.store.write({"run/a1": b"-", "now/a1": b"running"})

    def saved(state: bytes) -> bool:
        journal.save([SimpleNamespace(run=SimpleNamespace(id="a1"), state=state)])  # type: ignore[list-item]
        return journal.is_saved("a1")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "write", Mock(side_effect=FULL))
        assert not saved(b"paused")
    assert saved(b"running")
    assert disk.store.items["now/a1"] == b"running"
