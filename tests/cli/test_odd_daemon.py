"""A listener that sends odd replies causes no traceback, uses no unbounded memory and does not
control the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from sfad.protocol import messages as m
from sfad.protocol.types import Survivor

from .conftest import World
from .scripted import Answer, Scripted

EVIL = "\x1b[2J\x1b]0;x\x07\r"


def answered(world: World, answer: Answer, *words: str, code: int = 0) -> str:
    scripted = Scripted(world.socket, answer)
    try:
        done = world.sfactl(*words, code=code)
    finally:
        scripted.stop()
    return done.stdout + done.stderr


def test_messages_that_answer_nothing_are_not_kept_without_end(world: World) -> None:
    said = answered(world, lambda _: [m.Done(id=999)] * 70_000, "list", code=69)
    assert "no reply to request 2" in said


def status(number: int) -> m.DaemonStatus:
    return m.DaemonStatus(
        id=number, version=EVIL, pid=1, uptime_s=float("nan"), socket=EVIL, state_dir=EVIL,
        containment="tags", containment_detail=EVIL, draining=False, live=1, queued=0, admitted=0,
        refused=0, connections=1, memory_bytes=1, ledger_bytes=1,
    )  # fmt: skip


def result(number: int) -> m.Reply:
    return m.ResultText(id=number, run="a1", text=f"\tone\n{EVIL}", truncated=False)


def stopped(number: int) -> m.Reply:
    return m.Stopped(
        id=number,
        stopped=[EVIL],
        survivors=[Survivor(run_id=EVIL, pid=1, why=EVIL)],
        elapsed_s=float("inf"),
    )


@pytest.mark.parametrize("words", [("status",), ("status", "--json")], ids=" ".join)
@pytest.mark.parametrize("number", [2**64 - 1, -(2**63)])
def test_numbers_of_any_size_are_shown(world: World, words: Sequence[str], number: int) -> None:
    def answer(request: m.Request) -> m.Reply:
        return msgspec.structs.replace(
            status(request.id),
            live=number,
            memory_bytes=number,
            ledger_bytes=number,
            uptime_s=1e308,
        )

    said = answered(world, answer, *words)
    assert str(number) in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("make", "words", "code"),
    [(status, ["status"], 0), (result, ["result", "a1"], 0), (stopped, ["stop", "a1"], 5)],
)
def test_no_answer_steers_the_terminal(
    world: World, make: Callable[[int], m.Reply], words: Sequence[str], code: int
) -> None:
    said = answered(world, lambda request: make(request.id), *words, code=code)
    assert "\\x1b[2J" in said
    assert all(character.isprintable() or character in "\n\t" for character in said)
