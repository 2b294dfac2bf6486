"""A `Tail` continues where that of a killed daemon was: no line counts twice, and lost bytes are
reported."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad import agents
from sfad.agents.counters import Reading
from sfad.protocol.types import Tokens
from sfad.usage.stdout import READ_AT_ONCE, MeterPosition
from sfad.usage.tail import FREE_AFTER, Tail
from sfad.usage.tailed_run import FORMAT_VERSION
from tests.harness import until
from tests.output.test_holes import KIB, MIB, numbered
from tests.tiers import examples
from tests.usage.test_tail import Lines, NewMeter, Rig, serving

Again = Callable[..., Rig]


@pytest.fixture
def again(tmp_path: Path) -> Iterator[Again]:
    """Make one daemon after another in the same directory. Each continues from what the daemon
    before has saved."""
    with ExitStack() as closing:

        def begin(
            before: Rig | None = None, *, limit: int | None = None, meter: NewMeter | None = Lines
        ) -> Rig:
            rig = Rig(tmp_path / "output")
            closing.callback(rig.tail.close)
            if before is None:
                rig.write(b"")
                rig.begin(limit=limit, meter=meter)
            else:
                resume(before, rig, limit=limit, meter=meter)
            return rig

        yield begin


def resume(
    before: Rig, rig: Rig, *, limit: int | None = None, meter: NewMeter | None = Lines
) -> None:
    """Continue from a snapshot, without anything else of the daemon that made it."""
    saved = before.tail.position("a1")
    assert saved is not None
    before.tail.close()
    readings = rig.tail.follow("a1", limit=limit, meter=meter, saved=saved)
    assert readings is not None
    rig.seen["a1"] = readings  # its caller restores its own sums
    rig.tail.look("a1")


def path_of(rig: Rig) -> Path:
    return rig.store.directory / "a1.out"


def read_a_piece(rig: Rig) -> None:
    rig.tail.runs["a1"].read(0)


def test_it_continues_where_it_was(again: Again) -> None:
    first = again()
    first.write(b"one\ntwo\nthr")
    first.tail.drain([])
    read_a_piece(first)
    assert first.last() == Reading(
        turns=2, messages=2, models={"m": Tokens(input=2)}, tools=["one", "two"]
    )
    second = again(first)
    assert second.last() == Reading(turns=2, messages=2, models={"m": Tokens(input=2)})
    second.write(b"ee\n")
    second.tail.drain(["a1"])
    assert second.last() == Reading(
        turns=3, messages=3, models={"m": Tokens(input=3)}, tools=["three"]
    )
    assert (second.calls, second.lost, second.troubles) == (1, {}, [])


def test_unchanged_readings_are_not_told(again: Again) -> None:
    first = again()
    first.write(b"one\nhalf")
    read_a_piece(first)
    second = again(first)
    read_a_piece(second)
    third = again(second)
    third.write(b" a line")
    read_a_piece(third)
    assert (second.calls, third.calls, third.turns()) == (0, 0, 1)


def test_a_reading_that_was_not_told_before_the_restart_is_told(again: Again) -> None:
    """A line that is cut short by freed bytes ends without a call of `seen`."""
    first = again()
    first.write(b"one\nhalf a line")
    read_a_piece(first)
    first.write(numbered(1000))
    metered = first.tail.runs["a1"].stdout
    assert metered is not None
    metered.file.skip_to(64 * 500)
    assert first.turns() == 1
    second = again(first)
    assert second.last().turns == 2
    read_a_piece(second)
    assert second.calls == 1
    assert second.last().tools[0] == "half a line"
    assert second.turns() > 2


def test_readings_of_earlier_attempts_are_kept(again: Again) -> None:
    first = again()
    first.write(b"one\n!two\nhalf")
    first.tail.begin_attempt("a1")
    second = again(first)
    second.write(b"three\n")
    second.tail.drain(["a1"])
    assert [reading.turns for reading in second.seen["a1"]] == [3, 1]
    assert second.seen["a1"][0].finished
    second.tail.begin_attempt("a1")
    third = again(second)
    third.write(b"four\nfive\n")
    third.tail.drain(["a1"])
    assert [reading.turns for reading in third.seen["a1"]] == [3, 1, 2]
    third.tail.begin_attempt("a1")
    assert [reading.turns for reading in third.seen["a1"]] == [3, 1, 2, None]


def test_a_real_meter(again: Again) -> None:
    program = agents.named("codex")
    assert program is not None
    new = partial(program.meter, ["codex", "exec", "--json", "-m", "m"])
    rig = again(meter=new)
    for total in (10, 30, 70):
        rig.write(b'{"type":"turn.completed","usage":{"input_')
        rig.tail.drain([])
        read_a_piece(rig)
        rig = again(rig, meter=new)
        rig.write(b'tokens":%d,"output_tokens":1}}\n' % total)
        rig.tail.drain(["a1"])
        assert rig.last().models == {"m": Tokens(input=total, output=1)}


# ---- at any time

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 200)),
        st.tuples(st.just("write"), st.integers(READ_AT_ONCE - 10, 2 * READ_AT_ONCE + 10)),
        st.tuples(
            st.sampled_from(["piece", "drain", "end", "attempt", "restart", "truncate"]), st.just(0)
        ),
    ),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS)
def test_restarts_at_any_time_do_not_change_the_totals(steps: list[tuple[str, int]]) -> None:
    """They equal those of a daemon that was never killed."""
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
        ExitStack() as closing,
    ):
        steady, killed = Rig(Path(one)), Rig(Path(other))
        for rig in (steady, killed):
            rig.write(b"")
            rig.begin()
        written = 0
        for what, size in [*steps, ("drain", 0)]:
            if what == "restart":
                resume(killed, fresh := Rig(Path(other)))
                fresh.lost, killed = killed.lost, fresh
            data = b"".join(
                b"%d-%s\n" % (n, b"x" * (n % 90)) for n in range(written, written + size // 20 + 1)
            )[:size]
            written += size
            for rig in (steady, killed):
                act(rig, what, data)
            assert killed.turns() == steady.turns()
        closing.callback(steady.tail.close)
        closing.callback(killed.tail.close)
        assert models(killed) == models(steady)
        assert killed.missed() == steady.missed()


def models(rig: Rig) -> list[dict[str, Tokens]]:
    """Return the models of the attempts that used something; an attempt that did not need not have
    been told."""
    return [reading.models for reading in rig.seen.get("a1", ()) if reading.models]


def act(rig: Rig, what: str, data: bytes) -> None:
    if what == "write":
        rig.write(data)
    elif what == "piece":
        read_a_piece(rig)
    elif what == "drain":
        rig.tail.drain(["a2", "a1"], seconds=60)
    elif what == "end":
        rig.tail.drain(["a1"], seconds=60)
    elif what == "attempt":
        # first, because a busy machine may leave one of them no time to read all before an attempt
        rig.tail.drain(["a1"], seconds=60)
        rig.tail.begin_attempt("a1")
    elif what == "truncate":
        read_a_piece(rig)
        os.truncate(path_of(rig), 0)
        read_a_piece(rig)


async def test_many_restarts_while_the_run_writes(again: Again) -> None:
    """Each daemon is killed at some time, with what it has just saved."""
    rig, lines, stop = again(limit=64 * MIB), 0, threading.Event()

    def write() -> None:
        nonlocal lines
        store = Rig(rig.store.directory)
        while not stop.is_set():
            store.write(numbered(500))
            lines += 500
            time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(8):
            async with serving(rig):
                before = rig.turns()
                await until(lambda before=before: rig.turns() > before)  # type: ignore[misc] # noqa: B023
                await trio.sleep(0.03)
            rig = again(rig, limit=64 * MIB)
    finally:
        stop.set()
        writer.join()
    async with serving(rig):
        await until(lambda: rig.turns() == lines)
    assert rig.lost == {}


# ---- what happened meanwhile


def test_bytes_that_were_read_before_they_were_freed_are_not_reported(again: Again) -> None:
    first = again()
    first.write(numbered(4 * MIB // 64) + b"half")
    first.tail.drain(["a2", "a1"], seconds=60)
    second = again(first)
    for until_ in (2 * MIB, 4 * MIB):
        second.store.free("a1", ".out", 0, until_)
    second.write(b" a line\n")
    second.tail.drain(["a1"])
    assert (second.turns(), second.last().tools, second.lost) == (
        4 * MIB // 64 + 1,
        ["half a line"],
        {},
    )


def test_bytes_that_were_freed_unread_are_reported(again: Again) -> None:
    first = again()
    first.write(numbered(4 * MIB // 64) + b"the end\n")
    read_a_piece(first)
    second = again(first)
    second.store.free("a1", ".out", 0, 3 * MIB)
    second.tail.drain(["a1"], seconds=60)
    assert second.turns() == READ_AT_ONCE // 64 + MIB // 64 + 1
    assert second.lost == {
        "a1": [
            f"{3 * MIB - READ_AT_ONCE} bytes of its stdout were freed before its meter read them"
        ]
    }
    third = again(second)
    third.write(b"more\n")
    third.tail.drain(["a1"])
    assert (third.turns(), third.lost) == (second.turns() + 1, {})


@pytest.mark.parametrize("size", [0, 5])
def test_a_truncated_file_is_read_from_the_start(again: Again, size: int) -> None:
    first = again()
    first.write(b"one\ntwo\nhalf a line")
    read_a_piece(first)
    second = again(first)
    os.truncate(path_of(second), size)
    second.write(b"3\n")
    second.tail.drain(["a1"])
    assert second.turns() == 4 + size // 4
    assert len(second.lost["a1"]) == 1
    assert "truncated its stdout" in second.lost["a1"][0]


@pytest.mark.parametrize("lines", [1, 3, 4000])
def test_a_truncated_file_that_grew_again_is_read_from_the_start(again: Again, lines: int) -> None:
    """Neither its size nor its inode tells that it was truncated."""
    first = again()
    first.write(b"one\ntwo\nhalf a line")
    read_a_piece(first)
    second = again(first)
    os.truncate(path_of(second), 0)
    second.write(b"more than there was before\n" * lines)
    second.tail.drain(["a1"], seconds=60)
    assert second.turns() == 3 + lines
    assert "truncated its stdout" in second.lost["a1"][0]


def test_bytes_that_were_unread_before_a_truncation_are_reported(again: Again) -> None:
    first = again()
    first.write(numbered(MIB // 64))
    read_a_piece(first)
    second = again(first)
    os.truncate(path_of(second), 0)
    second.write(b"new\n")
    second.tail.drain(["a1"])
    assert second.lost == {
        "a1": [
            (
                f"{MIB - READ_AT_ONCE} bytes of its stdout were truncated away before its "
                "meter read them"
            )
        ]
    }
    assert second.turns() == READ_AT_ONCE // 64 + 1


@pytest.mark.parametrize("limit", [None, 64 * KIB])
async def test_another_file_in_its_place_is_left_alone(
    again: Again, tmp_path: Path, limit: int | None
) -> None:
    """As while a daemon runs: the run's own file may be gone, and the file in its place may be
    another user's."""
    first = again(limit=limit)
    first.write(b"one\n")
    read_a_piece(first)
    second = again(first, limit=limit)
    os.rename(path_of(second), tmp_path / "elsewhere")
    precious = tmp_path / "precious"
    precious.write_bytes(numbered(MIB // 64))
    path_of(second).hardlink_to(precious)
    async with serving(second):
        await until(lambda: "a1" in second.lost)
        await trio.sleep(FREE_AFTER + 0.1)
    second.tail.drain(["a1"])
    second.tail.forget("a1")
    assert second.lost == {
        "a1": ["the file of its stdout was taken away: it is not metered and not bounded any more"],
    }
    assert (second.turns(), second.troubles) == (1, [])
    assert precious.stat().st_blocks * 512 >= MIB


def test_another_attempt_may_have_another_file(again: Again, tmp_path: Path) -> None:
    first = again()
    first.write(b"one\n")
    first.tail.drain(["a1"])
    os.rename(path_of(first), tmp_path / "elsewhere")
    first.write(b"")
    first.tail.begin_attempt("a1")
    second = again(first)
    second.write(b"two\nthree\n")
    second.tail.drain(["a1"])
    assert [reading.turns for reading in second.seen["a1"]] == [1, 2]


# ---- what does not fit


def other_version(saved: bytes) -> bytes:
    fields = msgspec.msgpack.decode(saved)
    return msgspec.msgpack.encode([FORMAT_VERSION + 1, *fields[1:]])


def other_meter(saved: bytes) -> bytes:
    version, inodes, position = msgspec.msgpack.decode(saved)
    position[MeterPosition.__struct_fields__.index("meter")] = b"of another build"
    return msgspec.msgpack.encode([version, inodes, position])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: b"",
        lambda saved: saved[:-1],
        lambda saved: saved + b"\0",
        other_version,
        other_meter,
    ],
)
@pytest.mark.parametrize("freed", [0, MIB])
def test_without_a_fitting_snapshot_it_reads_from_the_start(
    again: Again, spoil: Callable[[bytes], bytes], freed: int
) -> None:
    first = again()
    first.write(numbered(2 * MIB // 64))
    first.tail.begin_attempt("a1")
    first.write(b"another\n")
    read_a_piece(first)
    saved = first.tail.position("a1")
    assert saved is not None
    first.store.free("a1", ".out", 0, freed)
    second = Rig(first.store.directory)
    assert second.tail.follow("a1", limit=None, meter=Lines, saved=spoil(saved)) is None
    second.tail.drain(["a1"], seconds=60)
    assert [reading.turns for reading in second.seen["a1"]] == [(2 * MIB - freed) // 64 + 1]
    assert second.missed() == freed
    assert (len(second.lost), second.troubles) == (int(freed > 0), [])
    second.tail.close()


def test_a_run_without_a_meter_has_nothing_to_save(again: Again) -> None:
    first = again(meter=None)
    assert first.tail.position("a1") is None
    assert first.tail.position("a2") is None
    first.tail.forget("a1")
    assert first.tail.follow("a1", limit=None, meter=None, saved=b"of before") is None
    assert first.tail.follow("a2", limit=None, meter=Lines) is None
    assert first.tail.position("a2") is not None
    first.tail.forget("a2")
    assert first.tail.position("a2") is None


def test_a_run_that_has_not_written_begins(again: Again) -> None:
    """Its daemon was killed before the run had a file, or had written to it."""
    first = again()
    first.tail.follow("a2", limit=None, meter=Lines)
    for run in ("a1", "a2"):
        second = Rig(first.store.directory)
        assert second.tail.follow(run, limit=None, meter=Lines, saved=first.tail.position(run)) == (
            Reading(),
        )
        second.tail.drain([run])
        second.write(b"one\n", run)
        second.tail.drain([run])
        second.tail.begin_attempt(run)
        assert [reading.turns for reading in second.seen[run]] == [1, None]
        second.tail.close()


def test_a_snapshot_is_cheap(again: Again) -> None:
    program = agents.named("claude")
    assert program is not None
    rig = again(meter=partial(program.meter, []))
    for number in range(100):
        rig.write(
            b'{"type":"assistant","message":{"id":"msg_%024d","model":"claude-opus-4-8","content":[],"usage":{"input_tokens":9}}}\n'
            % number
        )
    rig.tail.drain(["a1"], seconds=60)
    tail: Tail = rig.tail
    began = time.perf_counter()
    for _ in range(100):
        saved = tail.position("a1")
    took = (time.perf_counter() - began) / 100
    assert saved is not None
    assert len(saved) < 15_000
    assert took < 0.02  # 30 µs on a quiet machine
