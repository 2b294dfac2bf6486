"""When output was written: the index of a run that writes for long, and what is told of it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sfad.protocol.requests.following import OutputTime
from sfad.storage.output.files import OutputFiles, Suffix
from sfad.storage.output.times import MAX_ENTRIES, WriteTimes, read, told
from tests.ledger.samples import run as info

BEGAN = datetime(2026, 6, 1, 12, tzinfo=UTC)
START = BEGAN.timestamp()


class Writing:
    """A run that writes at times of our choice, and a daemon that looks after each write."""

    def __init__(self, directory: Path) -> None:
        self.files = OutputFiles(directory)
        for descriptor in self.files.open_for_run("a1"):
            os.close(descriptor)
        self.index = directory / "a1.times"
        self.times = WriteTimes(str(self.index))

    def write(
        self, after: float, data: str = "x\n", suffix: Suffix = ".out", *, seen: bool = True
    ) -> None:
        path = self.files.directory / f"a1{suffix}"
        with path.open("a") as file:
            file.write(data)
        os.utime(path, (START + after, START + after))
        if seen:
            self.look(suffix)

    def look(self, suffix: Suffix = ".out") -> None:
        status = self.files.status("a1", suffix)
        assert status is not None
        self.times.note(suffix, status)

    def begin(self) -> None:
        for suffix in (".out", ".err"):
            os.utime(self.files.directory / f"a1{suffix}", (START, START))
            self.look(suffix)

    def told(self) -> tuple[list[tuple[int, float, bool]], ...]:
        """Return offset, seconds after the run began, and whether that is exact, of stdout and of
        stderr."""
        descriptors = self.files.open_for_reader("a1")
        try:
            return tuple(
                [_plain(each) for each in times]
                for times in told(self.files, info(1, started_at=BEGAN), descriptors)
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _plain(told: OutputTime) -> tuple[int, float, bool]:
    return told.offset, (told.time - BEGAN) / timedelta(seconds=1), told.exact


def test_a_run_that_writes_at_once_has_no_index(tmp_path: Path) -> None:
    run = Writing(tmp_path)
    run.begin()
    for after in (0.1, 0.5, 0.9):
        run.write(after)
    assert not run.index.exists()
    assert run.told() == ([(6, 0.9, True)], [(0, 0, True)])


def test_what_is_written_within_a_second_has_one_time(tmp_path: Path) -> None:
    run = Writing(tmp_path)
    run.begin()
    for after in (5, 5.5, 9, 9.25, 20):
        run.write(after)
    run.write(12, "bad\n", ".err")
    assert run.told() == (
        [(0, 0, True), (4, 5.5, True), (8, 9.25, True), (10, 20, True)],
        [(0, 0, True), (4, 12, True)],
    )


def test_what_no_daemon_saw_has_no_exact_time(tmp_path: Path) -> None:
    run = Writing(tmp_path)
    run.begin()
    run.write(5)
    run.times = WriteTimes(str(run.index))
    run.write(30, seen=False)
    run.write(40)
    run.write(50)
    run.write(60)
    assert run.told()[0] == [(0, 0, True), (6, 40, False), (8, 50, True), (10, 60, True)]


def test_after_a_restart_what_was_written_soon_after_the_start_is_exact(tmp_path: Path) -> None:
    run = Writing(tmp_path)
    run.write(0.5, seen=False)
    run.look()
    run.write(70)
    assert run.told()[0] == [(2, 0.5, True), (4, 70, True)]


def test_times_of_a_truncated_file_begin_again(tmp_path: Path) -> None:
    run = Writing(tmp_path)
    run.begin()
    for after in (5, 10):
        run.write(after, "long line\n")
    (tmp_path / "a1.out").write_text("")
    run.write(20)
    run.write(30)
    assert run.told()[0] == [(2, 20, False), (4, 30, True)]


def test_an_index_is_bounded_and_says_where_it_has_lost_detail(tmp_path: Path) -> None:
    run = Writing(tmp_path)
    run.begin()
    for after in range(2, 3 * MAX_ENTRIES, 2):
        run.write(after)
    assert run.index.stat().st_size <= (MAX_ENTRIES + 1) * 16
    times = run.told()[0]
    assert times == sorted(times)
    assert times[-2:] == [
        (3 * MAX_ENTRIES - 4, 3 * MAX_ENTRIES - 4, True),
        (3 * MAX_ENTRIES - 2, 3 * MAX_ENTRIES - 2, True),
    ]
    assert not times[1][2]


def test_what_a_run_puts_in_the_place_of_its_index_is_not_followed(tmp_path: Path) -> None:
    run = Writing(tmp_path)
    run.begin()
    (tmp_path / "other").write_text("precious")
    run.index.symlink_to(tmp_path / "other")
    for after in (5, 10, 15):
        run.write(after)
    assert (tmp_path / "other").read_text() == "precious"
    assert run.told()[0] == [(6, 15, False)]


def test_no_content_of_an_index_is_an_error(tmp_path: Path) -> None:
    run = Writing(tmp_path)
    run.write(1e12)
    run.index.write_bytes(b"\xff" * 40)
    assert {suffix: len(marks) for suffix, marks in read(str(run.index)).items()} == {
        ".out": 0,
        ".err": 2,
    }
    assert run.told()[0][-1][1] > 1e9


def test_the_index_is_removed_with_the_output(tmp_path: Path) -> None:
    run = Writing(tmp_path)
    run.begin()
    run.write(5)
    assert run.index.exists()
    run.files.remove("a1")
    assert [*tmp_path.iterdir()] == []
