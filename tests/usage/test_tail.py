"""The output of runs is metered and bounded, and silent runs cost nothing. With real files and the
real kernel."""

from __future__ import annotations

import errno
import math
import os
import re
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from sfad import agents
from sfad.agents.counters import Meter, Reading
from sfad.core.state.run import run_id
from sfad.host.tasks import in_thread
from sfad.protocol.types import RunId, Tokens
from sfad.storage.output import OutputFiles, files, holes
from sfad.usage import tail as module
from sfad.usage.stdout import READ_AT_ONCE
from sfad.usage.tail import FREE_AFTER, NEWEST, NEWEST_AT_LEAST, NEWEST_OF_ALL, RESERVE, Tail
from tests import surroundings
from tests.harness import failing, until
from tests.output.test_holes import KIB, MIB, Refusing, allocate, held, numbered
from tests.tiers import first


class Lines:
    """A meter of lines: each is a turn, a message and a token of the model `m`. A line that begins
    with `!` is the result."""

    def __init__(self, saved: bytes | None = None) -> None:
        self.reading, self._begun = (Reading(), b"") if saved is None else LINES.decode(saved)

    def feed(self, data: bytes | memoryview) -> None:
        """Count lines, and remember the last three as tools."""
        reading = self.reading
        *lines, self._begun = (self._begun + bytes(data)).split(b"\n")
        if lines:
            reading.turns = reading.messages = (reading.turns or 0) + len(lines)
            reading.models["m"] = Tokens(input=reading.turns)
            reading.tools += [line.decode() for line in lines[-3:]]
            reading.finished = reading.finished or any(line.startswith(b"!") for line in lines)

    def dump(self) -> bytes:
        """All of it."""
        return msgspec.msgpack.encode((self.reading, self._begun))


LINES = msgspec.msgpack.Decoder(tuple[Reading, bytes])

NewMeter = Callable[[bytes | None], Meter]


class Rig:
    """A `Tail` and all that it has told."""

    def __init__(self, directory: Path, files: type[OutputFiles] = OutputFiles) -> None:
        self.store = files(directory)
        self.seen: dict[RunId, tuple[Reading, ...]] = {}
        self.calls = 0
        self.lost: dict[RunId, list[str]] = {}
        self.troubles: list[str] = []
        self.tail = Tail(self.store, seen=self._see, lost=self._lose, trouble=self.troubles.append)

    def _see(self, run: RunId, readings: tuple[Reading, ...]) -> None:
        self.calls += 1
        self.seen[run] = readings

    def _lose(self, run: RunId, message: str) -> None:
        self.lost.setdefault(run, []).append(message)

    def last(self, run: RunId = "a1") -> Reading:
        """Return the reading of the current attempt."""
        return self.seen[run][-1]

    def turns(self, run: RunId = "a1") -> int:
        """Return the number of lines that were counted, in all attempts."""
        return sum(reading.turns or 0 for reading in self.seen.get(run, ()))

    def missed(self, run: RunId = "a1") -> int:
        """Return the number of bytes that were reported as unread."""
        told = [
            re.fullmatch(r"(\d+) bytes of its stdout (.*)", message)
            for message in self.lost.get(run, ())
        ]
        return sum({each[2]: int(each[1]) for each in told if each is not None}.values())

    def write(self, data: bytes, run: RunId = "a1", stream: int = 0) -> None:
        """Write to the end of the run's file, as the run does."""
        descriptors = self.store.open_for_run(run)
        while data:
            data = data[os.write(descriptors[stream], data[: 1 << 20]) :]
        for descriptor in descriptors:
            os.close(descriptor)

    def begin(
        self, run: RunId = "a1", limit: int | None = None, meter: NewMeter | None = Lines
    ) -> None:
        """Do what `Metering` does for the first attempt of a run."""
        self.tail.follow(run, limit=limit, meter=meter)
        self.tail.begin_attempt(run)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    one = Rig(tmp_path / "output")
    yield one
    one.tail.close()


@pytest.fixture
async def served(rig: Rig) -> AsyncIterator[Rig]:
    async with serving(rig):
        yield rig


@asynccontextmanager
async def serving(rig: Rig) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(rig.tail.serve)
        yield
        nursery.cancel_scope.cancel()


# ---- meters


async def test_output_is_seen_soon(served: Rig) -> None:
    served.begin()
    latencies = []
    for number in range(1, 11):
        began = time.perf_counter()
        served.write(b"%d\n" % number)
        await until(lambda n=number: served.turns() == n)  # type: ignore[misc]
        latencies.append(time.perf_counter() - began)
    assert sorted(latencies)[5] < 2  # 50 ms on an idle machine
    total = served.last()
    assert (total.messages, total.models, total.tools) == (10, {"m": Tokens(input=10)}, ["10"])


async def test_unchanged_readings_are_not_told(served: Rig) -> None:
    served.begin()
    served.write(b"one\n")
    await until(lambda: served.turns() == 1)
    calls = served.calls
    served.write(b"half a line")
    served.write(b"err\n", stream=1)
    served.begin("a2")
    served.write(b"another\n", "a2")
    await until(lambda: served.turns("a2") == 1)
    assert served.calls == calls + 1


def test_a_real_meter(rig: Rig) -> None:
    program = agents.named("codex")
    assert program is not None
    rig.begin(meter=partial(program.meter, []))
    for _ in range(2):
        rig.write(
            b'{"type":"turn.completed","usage":{"input_tokens":7,"cached_input_tokens":2,"output_tokens":3}}'
        )
        rig.tail.begin_attempt("a1")
    told = [tokens for reading in rig.seen["a1"] for tokens in reading.models.values()]
    assert [(tokens.input, tokens.output, tokens.cached) for tokens in told] == [(7, 3, 2)] * 2


def test_a_drain_reads_output_that_inotify_has_not_told(rig: Rig) -> None:
    """The run was so short that inotify has not told yet, and its last line has no newline."""
    rig.begin()
    rig.write(b"one\n!last")
    rig.tail.drain(["a1"])
    assert (rig.turns(), rig.last().finished, rig.lost) == (2, True, {})


def test_a_drain_without_time_reads_the_newest(rig: Rig) -> None:
    rig.begin()
    data = numbered(NEWEST // 64 + 1000)
    rig.write(data)
    rig.tail.drain(["a1"], seconds=0)
    assert rig.lost == {"a1": ["64000 bytes of its stdout were not read by its meter in time"]}
    assert rig.turns() == NEWEST // 64
    assert rig.last().tools[-1] == data[-64:-1].decode()
    rig.tail.drain(["a1"])
    assert rig.turns() == NEWEST // 64


def test_a_drain_without_time_reads_the_whole_of_a_long_result(rig: Rig) -> None:
    rig.begin()
    rig.write(numbered(MIB // 64) + b"!" + b"x" * 5 * NEWEST + b"\nand so on\n")
    rig.tail.drain(["a1"], seconds=0)
    assert (rig.turns(), rig.last().finished) == (2, True)
    assert rig.missed() == MIB


@pytest.mark.usefixtures("only_reading_takes_time")
def test_a_drain_with_time_reads_everything(rig: Rig) -> None:
    rig.begin()
    rig.write(numbered(8 * MIB // 64))
    rig.tail.drain(["a1"], seconds=60)
    assert (rig.turns(), rig.lost) == (8 * MIB // 64, {})


class Slow(Lines):
    """A meter that takes 100 µs for each KiB (10 MB/s) of a clock that nothing else moves."""

    now = 0.0

    def feed(self, data: bytes | memoryview) -> None:
        """Let the time pass that it takes."""
        Slow.now += len(data) / KIB * 1e-4
        super().feed(data)


@pytest.fixture
def only_reading_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine may take away any number of milliseconds, so the real clock cannot show how
    a drain divides them."""
    monkeypatch.setattr(Slow, "now", 1000.0)
    monkeypatch.setattr(time, "perf_counter", lambda: Slow.now)


@first(1)
@pytest.mark.usefixtures("only_reading_takes_time")
@pytest.mark.parametrize("count", [4, 64])
def test_a_drain_of_many_runs_takes_only_a_moment(rig: Rig, count: int) -> None:
    """The last line of each run is found, and so is all that the quiet runs have printed."""
    quiet, *loud = runs = [run_id(number) for number in range(1, count + 1)]
    for run in runs:
        rig.begin(run, meter=Slow)
    rig.write(b"few\n", quiet)
    for run in loud:
        rig.write(numbered(2 * MIB // 64) + b"!the end\n", run)
    began = time.perf_counter()
    rig.tail.drain(reversed(runs))
    assert time.perf_counter() - began < 0.2  # 0.06 s of 4 runs, 0.11 of 64
    assert rig.turns(quiet) == 1
    assert all(rig.last(run).finished for run in loud)
    assert all(rig.missed(run) + 64 * rig.turns(run) >= 2 * MIB for run in loud)
    rest = min(NEWEST, max(NEWEST_AT_LEAST, NEWEST_OF_ALL // count))
    assert all(rig.turns(run) >= rest // 64 for run in loud)


@pytest.mark.usefixtures("only_reading_takes_time")
def test_drains_without_a_pause_share_their_time(rig: Rig) -> None:
    for number in range(1, 9):
        rig.begin(run_id(number), meter=Slow)
        rig.write(numbered(2 * MIB // 64), run_id(number))
    read = []
    for number in range(1, 9):
        rig.tail.drain([run_id(number)])
        read.append(64 * rig.turns(run_id(number)))
    assert read[0] > 2 * NEWEST
    # they took a moment, of which they may have as much again
    assert sum(read[1:]) <= 7 * NEWEST + read[0]


@pytest.mark.usefixtures("only_reading_takes_time")
def test_a_drain_with_more_time_has_it_also_after_a_short_one(rig: Rig) -> None:
    rig.begin(meter=Slow)
    rig.write(numbered(2 * MIB // 64))
    rig.tail.drain(["a1"])
    before = rig.turns()
    rig.write(numbered(8 * MIB // 64))
    rig.tail.drain(["a1"], seconds=60)
    assert rig.turns() == before + 8 * MIB // 64


def test_the_end_of_a_parent_does_not_cut_a_line_of_its_child(rig: Rig) -> None:
    rig.begin("a1")
    rig.begin("a2")
    rig.write(b"the last", "a1")
    rig.write(b"a line in ", "a2")
    rig.tail.drain(["a1", "a2"])
    assert rig.last("a1").tools == ["the last"]
    rig.write(b"two parts\n", "a2")
    rig.tail.drain(["a2"])
    assert rig.last("a2").tools == ["a line in two parts"]


def test_each_attempt_has_a_reading(rig: Rig) -> None:
    rig.write(b"")
    rig.begin()
    rig.write(b"one\n!two\nhalf")
    rig.tail.begin_attempt("a1")
    first, second = rig.seen["a1"]
    assert first == Reading(turns=3, messages=3, models={"m": Tokens(input=3)}, finished=True)
    assert second == Reading()
    rig.write(b"three\n")
    rig.tail.drain(["a1"])
    assert rig.seen["a1"][0] is first
    assert rig.last() == Reading(
        turns=1, messages=1, models={"m": Tokens(input=1)}, tools=["three"]
    )
    rig.tail.begin_attempt("a1")
    rig.tail.begin_attempt("a1")
    rig.write(b"!four\n")
    rig.tail.drain(["a1"])
    assert [reading.turns for reading in rig.seen["a1"]] == [3, 1, None, 1]


def test_readings_do_not_change_after_they_were_told(rig: Rig) -> None:
    rig.begin()
    rig.write(b"one\n")
    rig.tail.drain(["a1"])
    told = rig.last()
    rig.write(b"two\n")
    rig.tail.drain(["a1"])
    assert told == Reading(turns=1, messages=1, models={"m": Tokens(input=1)}, tools=["one"])


def test_an_attempt_may_find_another_file(rig: Rig) -> None:
    rig.begin()
    rig.write(b"one\ntwo\n")
    # keep it alive, because its inode may be used again for the next file
    os.rename(rig.store.directory / "a1.out", rig.store.directory / "elsewhere")
    rig.write(b"")
    rig.tail.begin_attempt("a1")
    rig.write(b"three\nand four\n")
    rig.tail.drain(["a1"])
    assert rig.turns() == 2


async def test_a_run_that_truncates_its_output_is_read_from_the_start(served: Rig) -> None:
    served.begin()
    served.write(b"one\ntwo\nthe beginning of a line")
    await until(lambda: served.turns() == 2)
    for word in ("three", "four"):
        os.truncate(served.store.directory / "a1.out", 0)
        served.write(f"{word}\n".encode())
        await until(lambda: served.last().tools[-1:] == [word])  # noqa: B023
    assert served.turns() == 5
    assert len(served.lost["a1"]) == 1
    assert "truncated" in served.lost["a1"][0]


@pytest.mark.parametrize("more", [b"", b"three\nfour\n"])
def test_a_truncated_file_that_has_grown_again_between_two_looks_is_read_from_the_start(
    rig: Rig, more: bytes
) -> None:
    rig.begin()
    rig.write(b"one\n" + b"-" * 100 + b"\n")
    rig.tail.drain(["a1"])
    os.truncate(rig.store.directory / "a1.out", 0)
    rig.write(b"two\n" + b"+" * 101 + b"\n" + more)
    rig.tail.drain(["a1"])
    assert "two" in rig.last().tools
    assert len(rig.lost["a1"]) == 1
    assert "truncated" in rig.lost["a1"][0]


def test_output_unread_before_a_truncation_is_reported_as_lost(rig: Rig) -> None:
    rig.begin()
    rig.write(numbered(MIB // 64))
    assert rig.tail.runs["a1"].read(0) is False
    rig.write(numbered(10), "a2")
    os.truncate(rig.store.directory / "a1.out", 0)
    rig.write(b"new\n")
    rig.tail.drain(["a1"])
    assert rig.last().tools == ["new"]
    assert rig.lost == {
        "a1": [
            (
                f"{MIB - READ_AT_ONCE} bytes of its stdout were truncated away before its "
                "meter read them"
            )
        ]
    }


async def test_a_hole_of_a_terabyte_is_not_read(served: Rig) -> None:
    """A run can make its file very long at no cost."""
    served.begin(limit=MIB)
    served.write(b"one\n")
    await until(lambda: served.turns() == 1)
    os.truncate(served.store.directory / "a1.out", 1 << 40)
    served.write(b"two\n")
    await until(lambda: served.last().tools[-1:] == ["two"])


async def test_a_run_that_never_pauses_does_not_starve_the_others(served: Rig) -> None:
    """The few lines of another run are read between the slices of the run that writes much, and
    timers fire in time."""
    lines = 64 * MIB // 64
    served.begin("a1")
    served.begin("a2")
    served.write(b"%063d\n" % 0 * lines, "a1")
    late, started = 0.0, time.perf_counter()
    while served.turns("a1") < lines:
        began = time.perf_counter()
        await trio.sleep(0.001)
        late = max(late, time.perf_counter() - began)
        if served.turns("a1") and not served.turns("a2"):
            served.write(b"few\n", "a2")
            await until(lambda: served.turns("a2") == 1)
            assert served.turns("a1") < lines
    # some 3 ms in truth, of seconds; this machine is shared
    assert late < (time.perf_counter() - started) / 2


def test_a_meter_that_raises_is_dropped(rig: Rig) -> None:
    class Broken(Lines):
        def feed(self, data: bytes | memoryview) -> None:  # noqa: ARG002
            raise ZeroDivisionError

    rig.begin(meter=Broken)
    rig.write(b"one\n")
    rig.tail.drain(["a1"])
    rig.tail.drain(["a1"])
    rig.tail.begin_attempt("a1")
    assert len(rig.troubles) == 1
    assert "ZeroDivisionError" in rig.troubles[0]


def put_in_place(path: Path, what: str, precious: Path) -> None:
    path.unlink()
    if what == "link":
        path.symlink_to(precious)
    elif what == "hard link":
        path.hardlink_to(precious)
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()


@pytest.mark.parametrize("what", ["nothing", "link", "hard link", "fifo", "directory"])
@pytest.mark.parametrize("metered", [True, False])
async def test_output_that_was_moved_or_removed_is_reported(
    served: Rig, tmp_path: Path, what: str, metered: bool
) -> None:
    """The meter continues with the file that the run was given; a file in its place is left
    alone."""
    precious = tmp_path / "precious"
    precious.write_bytes(bytes(MIB))
    out, err = served.store.open_for_run("a1")
    served.begin(limit=64 * KIB, meter=Lines if metered else None)
    put_in_place(served.store.directory / "a1.out", what, precious)
    await until(lambda: "a1" in served.lost)
    assert served.lost == {
        "a1": ["the file of its stdout was taken away: it is not bounded any more"]
    }
    for number in range(3):
        os.write(out, b"line\n" * 20_000)
        await until(lambda: not metered or served.turns() == 20_000 * (number + 1))  # noqa: B023
    served.tail.drain(["a1"])
    served.tail.forget("a1")
    await trio.sleep(FREE_AFTER + 0.1)
    assert (len(served.lost["a1"]), served.troubles) == (1, [])
    assert precious.stat().st_blocks * 512 >= MIB
    os.close(out)
    os.close(err)


async def test_a_moved_file_is_still_metered(served: Rig, tmp_path: Path) -> None:
    """The kernel does not tell what is written there."""
    out, err = served.store.open_for_run("a1")
    served.begin()
    os.rename(served.store.directory / "a1.out", tmp_path / "elsewhere")
    await trio.sleep(0.1)
    os.write(out, b"one\n")
    await until(lambda: served.turns() == 1)
    assert served.lost == {}  # it was not bounded before
    os.close(out)
    os.close(err)


def test_another_file_is_not_metered(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor was left to hold the run's own file open."""
    rig.write(b"")
    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "open_for_meter", failing(errno.EMFILE))
        rig.begin(limit=MIB)
    assert "Too many open files" in rig.troubles[0]
    os.rename(rig.store.directory / "a1.out", rig.store.directory / "elsewhere")
    rig.write(b"somebody's\n")
    rig.tail.drain(["a1"])
    assert rig.turns() == 0
    assert rig.lost == {
        "a1": ["the file of its stdout was taken away: it is not metered and not bounded any more"]
    }


def test_a_metered_run_holds_one_descriptor_and_a_bounded_one_holds_both_files(rig: Rig) -> None:
    rig.write(b"")
    rig.write(b"", "a2")
    before = len(os.listdir("/proc/self/fd"))
    rig.begin("a2", limit=MIB, meter=None)
    assert len(os.listdir("/proc/self/fd")) == before + 2
    for _ in range(2):
        rig.tail.begin_attempt("a1")
        rig.begin()
        rig.write(b"x\n")
        rig.tail.drain(["a1"])
        assert len(os.listdir("/proc/self/fd")) == before + 3
        rig.tail.forget("a1")
    rig.tail.forget("a2")
    rig.tail.forget("a2")
    assert len(os.listdir("/proc/self/fd")) == before
    assert not rig.tail.runs
    rig.tail.drain(["a1"])
    rig.tail.begin_attempt("a1")
    rig.tail.look("a1")
    rig.tail.set_limit("a1", 1)


# ---- bounds


@pytest.fixture(params=["disk", "memory"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(
        dir=surroundings.in_memory() if request.param == "memory" else tmp_path
    ) as directory:
        one = Rig(Path(directory) / "output")
        yield one
        one.tail.close()


@first(1)
async def test_a_run_that_writes_300_megabytes_keeps_the_newest(anywhere: Rig) -> None:
    rig, block = anywhere, numbered(MIB // 64)
    async with serving(rig):
        rig.begin(limit=MIB, meter=None)
        for _ in range(30):
            await trio.to_thread.run_sync(rig.write, block * 10)
        rig.write(b"the end\n")
        await until(lambda: held(rig.store) <= MIB + 64 * KIB)
    path = rig.store.directory / "a1.out"
    assert path.stat().st_size == 300 * MIB + 8
    assert rig.store.tail("a1", MIB) == ((block + b"the end\n")[-MIB:], True)
    assert rig.troubles == []


async def test_stderr_is_bounded_too(served: Rig) -> None:
    served.begin(limit=MIB, meter=None)
    served.write(bytes(3 * MIB), stream=1)
    await until(lambda: held(served.store, "a1.err") <= MIB + 64 * KIB)


@first(1)
async def test_a_metered_run_is_read_before_it_is_freed(anywhere: Rig) -> None:
    rig, lines = anywhere, 48 * MIB // 64
    async with serving(rig):
        rig.begin(limit=32 * MIB)
        await trio.to_thread.run_sync(rig.write, b"%063d\n" % 7 * lines)
        await until(lambda: rig.turns() == lines and held(rig.store) <= 32 * MIB + 64 * KIB)
    assert rig.lost == {}


async def test_a_slow_meter_reports_the_bytes_that_it_loses(
    served: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TURN", 0)

    class Slower(Lines):
        def feed(self, data: bytes | memoryview) -> None:
            time.sleep(0.02)
            super().feed(data)

    served.begin(limit=MIB, meter=Slower)
    lines = 8 * MIB // 64
    served.write(b"%063d\n" % 7 * lines)
    # twice the limit, so that the meter can read
    await until(lambda: held(served.store) <= 2 * MIB + 64 * KIB)
    await until(lambda: served.turns() + served.missed() // 64 >= lines)
    assert 2 * MIB <= served.missed() <= 6 * MIB
    assert "freed before its meter" in served.lost["a1"][0]
    await until(lambda: held(served.store) <= MIB + 64 * KIB)


def test_a_meter_that_never_catches_up_is_reported_seldom(rig: Rig) -> None:
    rig.write(b"")
    rig.begin()
    metered = rig.tail.runs["a1"].stdout
    assert metered is not None
    for number in range(1, 1000):
        metered.file.skip_to(number * MIB)
    assert len(rig.lost["a1"]) == 10
    assert rig.missed() == 512 * MIB
    rig.tail.drain(["a1"])


async def test_bytes_that_an_earlier_daemon_freed_are_reported(served: Rig) -> None:
    served.write(numbered(4 * MIB // 64))
    served.store.free("a1", ".out", MIB, 3 * MIB)
    served.tail.follow("a1", limit=MIB, meter=Lines)
    served.tail.look("a1")
    await until(lambda: served.turns() == MIB // 64)
    assert served.lost == {
        "a1": [f"{3 * MIB} bytes of its stdout were freed before its meter read them"]
    }


class SmallDisk(OutputFiles):
    """A disk that counts what only these files hold."""

    size = RESERVE + 8 * MIB

    def room(self) -> int:
        return max(
            0, self.size - sum(each.stat().st_blocks * 512 for each in self.directory.iterdir())
        )


async def test_output_leaves_room_on_the_disk(tmp_path: Path) -> None:
    """A run with a large limit fills the disk; a small file of another run, that grows in the same
    moment, stays whole."""
    rig = Rig(tmp_path / "output", SmallDisk)
    small = rig.store
    rig.begin("a1", limit=1 << 40, meter=None)
    rig.begin("a2", limit=1 << 40, meter=None)
    rig.write(numbered(MIB // 64) * 40, "a2")
    rig.write(numbered(MIB // 256), "a1")
    assert small.room() == 0
    async with serving(rig):
        await until(lambda: small.room() >= RESERVE)
        rig.write(b"more\n", "a2")
        rig.write(b"more\n", "a1")
        rig.write(b"more\n", "a1", stream=1)
        await until(lambda: len(rig.troubles) == 1)
    assert held(small, "a1.out") >= MIB // 4
    (told,) = rig.troubles
    assert re.search(
        (
            r"free, so stdout and stderr of each run that prints keep .* at most; free some, or "
            r"lower "
            r"limits.max_output"
        ),
        told,
    )
    rig.tail.close()


@pytest.mark.parametrize("written", [b"", b"some words"], ids=["nothing", "little"])
async def test_room_that_a_run_allocates_is_freed_at_the_first_look(
    served: Rig, monkeypatch: pytest.MonkeyPatch, written: bytes
) -> None:
    monkeypatch.setattr(module, "FREE_AFTER", math.inf)
    served.begin(limit=64 * KIB, meter=None)
    out, err = served.store.open_for_run("a1")
    allocate(out, MIB, 64 * MIB)
    os.write(out, written)
    await until(lambda: held(served.store) <= 128 * KIB)
    os.close(out)
    os.close(err)


async def test_a_limit_may_change_while_nothing_is_written(served: Rig) -> None:
    served.begin(limit=None, meter=None)
    served.write(bytes(3 * MIB))
    await until(lambda: not served.tail.behind)
    assert held(served.store) >= 3 * MIB
    served.tail.set_limit("a1", MIB)
    await until(lambda: held(served.store) <= MIB + 64 * KIB)


async def test_a_run_that_ends_at_once_is_bounded(served: Rig) -> None:
    """Inotify has not told what it wrote, and it is already forgotten."""
    served.begin(limit=MIB)
    served.write(bytes(3 * MIB))
    served.tail.drain(["a1"])
    served.tail.forget("a1")
    await until(lambda: held(served.store) <= MIB + 64 * KIB)


async def test_a_daemon_that_ends_has_bounded_its_runs(rig: Rig) -> None:
    async with serving(rig):
        rig.begin(limit=MIB, meter=None)
        rig.write(bytes(3 * MIB))
        rig.tail.forget("a1")
    assert held(rig.store) <= MIB + 64 * KIB


async def test_a_file_system_that_cannot_free_is_reported_once(
    served: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holes, "libc", Refusing(errno.EOPNOTSUPP))
    for run in ("a1", "a2"):
        served.begin(run, limit=MIB)
        served.write(numbered(3 * MIB // 64), run)
        await until(lambda run=run: served.turns(run) == 3 * MIB // 64)  # type: ignore[misc]
        await until(lambda: bool(served.troubles))
    assert len(served.troubles) == 1
    assert "cannot be bounded" in served.troubles[0]


async def test_other_errors_are_reported_once_a_run(
    served: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(errno.ENOSPC)
    monkeypatch.setattr(holes, "libc", refusing)
    served.begin(limit=MIB, meter=None)
    served.write(bytes(3 * MIB))
    await until(lambda: refusing.calls == 1)
    served.write(b"more")
    await until(lambda: refusing.calls == 2)
    await until(lambda: bool(served.troubles))
    assert len(served.troubles) == 1
    assert "No space left" in served.troubles[0]
    monkeypatch.undo()
    served.write(b"more")
    await until(lambda: held(served.store) <= MIB + 64 * KIB)


async def test_a_lack_of_threads_is_reported_once_and_tried_again(
    served: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def refuse(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise RuntimeError("can't start new thread")

    idle = trio.to_thread.current_default_thread_limiter
    assert idle().borrowed_tokens == 0
    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(trio._core._thread_cache.THREAD_CACHE, "_idle_workers", {})
    for run in ("a1", "a2"):
        served.begin(run, limit=MIB, meter=None)
        served.write(bytes(3 * MIB), run)
    await until(lambda: tries >= 3)
    assert len(served.troubles) == 1
    assert "can't start new thread" in served.troubles[0]
    monkeypatch.undo()
    await until(
        lambda: (
            held(served.store, "a1.out") <= MIB + 64 * KIB
            and held(served.store, "a2.out") <= MIB + 64 * KIB
        )
    )


async def test_another_error_of_a_thread_is_not_a_shortage() -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        await in_thread(broken)


# ---- inotify


async def test_silent_runs_cost_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """In an hour with 500 of them the daemon does not wake."""
    woken = 0
    take = files.Inotify.take

    def counted(self: files.Inotify) -> set[RunId] | None:
        nonlocal woken
        woken += 1
        return take(self)

    monkeypatch.setattr(files.Inotify, "take", counted)
    for number in range(1, 501):
        rig.begin(run_id(number), limit=64 * MIB, meter=Lines if number % 2 else None)
    async with serving(rig):
        await trio.sleep(1)
        before = woken
        await trio.sleep(3600)
        assert woken == before


async def test_a_writer_without_pause_wakes_the_daemon_seldom(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    take = files.Inotify.take

    def counted(self: files.Inotify) -> set[RunId] | None:
        looks.append(time.perf_counter())
        return take(self)

    monkeypatch.setattr(files.Inotify, "take", counted)
    rig.begin(limit=MIB, meter=None)
    async with serving(rig):
        out, err = rig.store.open_for_run("a1")
        with trio.move_on_after(5):
            while len(looks) < 12:
                os.write(out, b"x" * 1000)
                await trio.lowlevel.checkpoint()
        os.close(out)
        os.close(err)
    assert looks[-1] - looks[0] >= 0.9 * (len(looks) - 1) * module.LOOK_EVERY


async def test_while_a_run_writes_much_the_kernel_tells_no_writes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write waited for that, a third longer if it was of 4 KiB. All that is written meanwhile
    is read all the same."""
    told: list[bool] = []
    tell_writes = files.Inotify.tell_writes

    def noted(self: files.Inotify, wanted: bool) -> bool:
        changed = tell_writes(self, wanted)
        told.extend([wanted] * changed)
        return changed

    monkeypatch.setattr(files.Inotify, "tell_writes", noted)
    rig.begin("a1", limit=256 * MIB, meter=None)
    rig.begin("a2")
    async with serving(rig):
        rig.write(b"quiet\n", "a2")
        await until(lambda: rig.turns("a2") == 1)
        assert told == []
        for _ in range(3):
            rig.write(bytes(4 * MIB), "a1")
            rig.write(b"meanwhile\n", "a2")
            await trio.sleep(0.02)
        await until(lambda: told[-1:] == [True] and rig.turns("a2") == 4)
        assert told[0] is False
        rig.write(b"after\n", "a2")
        await until(lambda: rig.turns("a2") == 5)


async def test_an_overflow_of_inotify_s_queue(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files are looked at after an overflow."""
    take = files.Inotify.take
    monkeypatch.setattr(files.Inotify, "take", lambda self: take(self) and None)
    rig.begin("a1")
    rig.begin("a2", limit=MIB, meter=None)
    async with serving(rig):
        rig.write(b"one\n", "a1")
        rig.write(bytes(2 * MIB), "a2")
        await until(lambda: rig.turns("a1") == 1 and held(rig.store, "a2.out") <= MIB + 64 * KIB)


async def test_without_inotify_all_files_are_looked_at(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(errno.EMFILE, times=4)
    monkeypatch.setattr("sfad.host.linux.displacement.libc", refusing)
    rig.begin(limit=MIB)
    async with serving(rig):
        rig.write(numbered(3 * MIB // 64))
        await until(lambda: rig.turns() == 3 * MIB // 64 and held(rig.store) <= MIB + 64 * KIB)
        assert len(rig.troubles) == 1
        assert "Too many open files" in rig.troubles[0]
        monkeypatch.undo()  # a descriptor is free again
        await until(
            lambda: any("inotify" in os.readlink(f"/proc/self/fd/{fd}") for fd in descriptors())
        )
        rig.write(b"more\n")
        await until(lambda: rig.turns() == 3 * MIB // 64 + 1)


def descriptors() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]


async def test_output_written_before_serving_is_read(rig: Rig) -> None:
    rig.begin(limit=MIB)
    rig.write(b"early\n")
    async with serving(rig):
        await until(lambda: rig.turns() == 1)
