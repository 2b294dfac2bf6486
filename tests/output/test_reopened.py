"""Files that processes open again, with the kernel's own events."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sfad.storage.output.reopened import Reopenings
from sfad.storage.output.truncated import Budget, NewestBytes, Truncation

pytestmark = pytest.mark.needs("root")


def test_what_was_there_before_each_open_is_told_in_order(tmp_path: Path) -> None:
    path, reopenings = tmp_path / "a1.out", Reopenings()
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with reopenings.served():
        reopenings.watch(file)
        newest = NewestBytes(Budget())
        subprocess.run(["sh", "-c", 'for i in 1 22 3; do echo $i >"$0"; done', path], check=True)
        assert reopenings.opened(os.fstat(file).st_ino)
        found = reopenings.truncations(newest, file)[1]
        assert found == [Truncation(b"1\n", 0), Truncation(b"22\n", 0)]
        assert not reopenings.any()
        reopenings.unwatch(file)
    os.close(file)


def test_nothing_is_kept_of_a_file_that_is_watched_no_more(tmp_path: Path) -> None:
    """Its inode may be another file's by then, and a process opens it without pause."""
    path, reopenings = tmp_path / "a1.out", Reopenings()
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    opens = subprocess.Popen(["sh", "-c", 'while echo secret >>"$0"; do :; done', path])
    try:
        with reopenings.served():
            for _ in range(200):
                reopenings.watch(file)
                while not reopenings.any():
                    os.sched_yield()
                reopenings.unwatch(file)
        assert not reopenings.any()
    finally:
        opens.kill()
        opens.wait()
        os.close(file)
