"""`sfactl calls`: lines for people, pages, and what is followed while the daemon restarts."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from sfactl.commands import calls
from sfad.protocol import messages as m
from sfad.protocol.types import CallInfo, Status

from .conftest import World
from .samples import NOON, run
from .scripted import Scripted


def call(number: int = 1, **changes: Any) -> CallInfo:
    told: dict[str, Any] = {
        "run_id": "a1",
        "state": "ended",
        "upstream": "anthropic",
        "model": "m",
        "status": 200,
    }
    return CallInfo(time=NOON + timedelta(seconds=number), number=number, **told | changes)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (call(), "200"),
        (
            call(tools=2, clamped_to=4096, waited_s=3.0),
            "200, 2 tool calls, lowered to 4096, waited 3.0s",
        ),
        (call(status=None, error="the gateway was killed"), "the gateway was killed"),
        (call(status=None), "ended"),
        (
            call(served="m-2", price_from="m-2", modes={"audio": (1500, 20), "image": (0, 1300)}),
            "200, audio 1500 in and 20 out, image 1300 out, answered by m-2",
        ),
        (call(served="m-2", price_from="m"), "200, answered by m-2, price of m"),
        (call(price_from="m"), "200"),
        (call(price_from="m at groq"), "200, price of m at groq"),
        (call(price_from="reply"), "200, cost as the reply says"),
        (call(price_from="x", estimated=True), "200, cost estimated (price of x)"),
        (call(state="under_way", clamped_to=4096, waited_s=0.2), "under way, lowered to 4096"),
        (call(state="waiting"), "waiting"),
        (call(state="refused", refused="no room"), "refused: no room"),
        (
            call(state="refused", refused="no room", more=1),
            "refused: no room (and 1 more call in that minute)",
        ),
        (call(state="withdrawn", error="it hung up"), "not made: it hung up"),
    ],
)
def test_what_became_of_a_call(told: CallInfo, said: str) -> None:
    assert calls.result(told) == said


def test_figures_of_a_call() -> None:
    known = call(
        input_tokens=1500,
        cached_tokens=1000,
        output_tokens=20,
        cost_usd=0.25,
        partial=True,
        first_byte_s=0.0123,
        elapsed_s=75,
    )
    assert calls.cells(known)[1:-1] == ["m", "1500", "1000", "20", "≥0.25", "12ms", "1m15s"]
    other = call(model=None, path="/v1/embeddings\n", state="refused", refused="no\x1b[31m")
    assert calls.cells(other)[1:] == ["/v1/embeddings\\x0a", *["-"] * 6, "refused: no\\x1b[31m"]


class Past:
    """Answers with pages of two calls."""

    def __init__(self, *told: CallInfo, ended: bool = True) -> None:
        self.told = list(told)
        self.ended = ended

    def __call__(self, request: m.Request) -> m.Reply | tuple[m.Reply, ...]:
        match request:
            case m.ListCalls(after=after, after_number=number):
                rest = [
                    each
                    for each in self.told
                    if after is None or (each.time, each.number) > (after, number)
                ]
                return m.CallPage(
                    id=request.id,
                    run="a1",
                    calls=rest[:2],
                    more=len(rest) > 2,
                    ended=self.ended,
                    gateway=True,
                )
            case m.Watch():
                return m.Done(id=request.id)
            case m.Wait():
                return (
                    m.RunReply(id=request.id, run=run(Status.COMPLETED, ended_at=NOON))
                    if self.ended
                    else ()
                )
        raise AssertionError(request)


@pytest.fixture
def past() -> Past:
    """A daemon that knows five calls."""
    return Past(
        *(
            call(number, state="refused", refused="no") if number == 3 else call(number)
            for number in range(1, 6)
        )
    )


def numbers(lines: str) -> list[int]:
    return [json.loads(line)["number"] for line in lines.splitlines()]


def test_every_page_is_printed(world: World, past: Past) -> None:
    daemon = Scripted(world.socket, past)
    try:
        assert numbers(world.sfactl("calls", "a1", "--json").stdout) == [1, 2, 3, 4, 5]
        assert numbers(world.sfactl("calls", "a1", "--json", "--refused").stdout) == [3]
        assert numbers(world.sfactl("calls", "a1", "--json", "-f").stdout) == [1, 2, 3, 4, 5]
        assert len(world.sfactl("calls", "a1").stdout.splitlines()) == 6
        past.told.clear()
        none = world.sfactl("calls", "a1")
        assert (none.stdout, none.stderr) == ("", "a1: no call was made through the gateway\n")
    finally:
        daemon.stop()


def test_what_is_followed_is_printed_once_though_the_daemon_restarts(
    world: World, past: Past
) -> None:
    past.ended = False
    daemon = Scripted(world.socket, past)
    try:
        with world.popen("calls", "a1", "--json", "-f") as client:
            watch, _ = daemon.until(m.Watch), daemon.until(m.Wait)
            for told in (
                call(5),
                call(6, state="waiting"),
                call(6),
                call(6, state="waiting"),
                call(7, run_id="a2"),
            ):
                daemon.say(m.CallPush(id=watch.id, call=told))
            daemon.until_read()
            past.told += [call(6), call(8)]
            daemon.restart()
            daemon.until(m.Wait, 2)
            daemon.say(m.CallPush(id=daemon.until(m.Watch, 2).id, call=call(9)))
            daemon.until_read()
            past.ended = True
            daemon.restart()
            out, err = client.communicate(timeout=60)
            assert client.returncode == 0, err
            assert numbers(out.decode()) == [1, 2, 3, 4, 5, 6, 6, 8, 9]
    finally:
        daemon.stop()
