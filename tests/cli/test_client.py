"""The public client (docs/client.md)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio

from sfactl import client
from sfactl.client import (
    DaemonUnreachable,
    LimitReached,
    RequestFailed,
    Sfad,
    SfadError,
    Unanswered,
)
from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, LimitKind, LimitRefusal
from tests.docs.pages import text_of

from .samples import run
from .scripted import Scripted

REFUSAL = LimitRefusal(
    scope="tree",
    whose="a1",
    limit_kind=LimitKind.COST,
    threshold=1,
    used=0.9,
    asked=0.2,
    message="not reserved: …",
)


def agreeable(request: m.Request) -> m.Reply:
    """Grant each request."""
    if isinstance(request, m.Reserve):
        return m.Reserved(id=request.id, run="a1", reservation="a1-1", cost_usd=0.01)
    return m.RunReply(id=request.id, run=run())


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Scripted]:
    scripted = Scripted(tmp_path / "sock", agreeable)
    yield scripted
    scripted.stop()


@pytest.fixture
def sfad(daemon: Scripted) -> Iterator[Sfad]:
    with Sfad(socket=str(daemon.path), timeout=10) as sfad:
        yield sfad


def test_the_page_tells_every_exception() -> None:
    for name in set(client.__all__) - {"Reservation", "Sfad"}:
        assert f"`{name}`" in text_of("client.md")


def test_nothing_is_connected_before_the_first_call(daemon: Scripted, sfad: Sfad) -> None:
    assert daemon.greeted == 0
    sfad.report(turns=1)
    sfad.report(messages=2, role="planning")
    assert daemon.greeted == 1
    assert daemon.asked == [m.Report(id=2, turns=1), m.Report(id=3, messages=2, role="planning")]


def test_a_reservation_is_settled(daemon: Scripted, sfad: Sfad) -> None:
    with sfad.reserve("claude", input_tokens=1200, max_output_tokens=800) as held:
        assert (held.id, held.run, held.cost_usd) == ("a1-1", "a1", 0.01)
        held.settle(input_tokens=1100, output_tokens=90, cached_tokens=1000)
    assert daemon.asked == [
        m.Reserve(id=2, model="claude", input_tokens=1200, max_output_tokens=800),
        m.Settle(id=3, reservation="a1-1", input_tokens=1100, output_tokens=90, cached_tokens=1000),
    ]
    with pytest.raises(SfadError, match="already settled"):
        held.cancel()


def test_a_refused_reservation_has_the_daemons_words(daemon: Scripted, sfad: Sfad) -> None:
    daemon.answer = lambda request: m.Reserved(id=request.id, run="a1", refused=REFUSAL)
    with pytest.raises(LimitReached, match=r"^not reserved: …$") as raised:
        sfad.reserve("claude", input_tokens=1, max_output_tokens=1)
    assert raised.value.refusal == REFUSAL


def test_an_exception_leaves_the_reservation_charged(daemon: Scripted, sfad: Sfad) -> None:
    with pytest.raises(KeyError), sfad.reserve("claude", input_tokens=1, max_output_tokens=1):
        raise KeyError
    assert [type(request) for request in daemon.asked] == [m.Reserve]


def test_who_forgets_to_settle_is_told(sfad: Sfad) -> None:
    with (
        pytest.warns(RuntimeWarning, match="a1-1 was not settled"),
        sfad.reserve("claude", input_tokens=1, max_output_tokens=1),
    ):
        pass


def test_cancelling_settles_with_nothing(daemon: Scripted, sfad: Sfad) -> None:
    with sfad.reserve("claude", input_tokens=1, max_output_tokens=1) as held:
        held.cancel()
    assert daemon.asked[-1] == m.Settle(id=3, reservation="a1-1", input_tokens=0, output_tokens=0)


def test_a_report_that_says_nothing_is_not_sent(daemon: Scripted, sfad: Sfad) -> None:
    with pytest.raises(ValueError, match="at least one"):
        sfad.report(model="claude", role="planning")
    assert daemon.asked == []


def test_the_run_is_the_one_that_the_daemon_finds_or_that_is_named(
    daemon: Scripted, sfad: Sfad
) -> None:
    assert sfad.run_id == "a1"
    assert sfad.info().name == "worker"
    with Sfad(run="a7", socket=str(daemon.path)) as other:
        other.report(turns=1)
        other.info()
    assert [getattr(request, "run", None) for request in daemon.asked] == ["a1", "a7", "a7"]


def test_outside_any_run_one_must_be_named(tmp_path: Path) -> None:
    daemon = Scripted(tmp_path / "sock", agreeable, run=None)
    with Sfad(socket=str(daemon.path)) as sfad, pytest.raises(SfadError, match="name one"):
        sfad.info()
    daemon.stop()


def test_what_the_daemon_refuses_has_a_code(daemon: Scripted, sfad: Sfad) -> None:
    daemon.answer = lambda request: m.Error(
        id=request.id, code=ErrorCode.NOT_PERMITTED, message="not in your subtree"
    )
    with pytest.raises(RequestFailed, match="subtree") as raised:
        sfad.report(turns=1)
    assert raised.value.code is ErrorCode.NOT_PERMITTED
    daemon.answer = agreeable
    sfad.report(turns=1)
    assert daemon.greeted == 1, "the connection is none the worse"


def test_without_a_daemon(tmp_path: Path) -> None:
    with (
        Sfad(socket=str(tmp_path / "sock")) as sfad,
        pytest.raises(DaemonUnreachable, match="does not exist") as raised,
    ):
        sfad.report(turns=1)
    assert raised.value.kind == "missing"


def test_a_daemon_that_was_restarted_between_two_calls_is_found_again(
    daemon: Scripted, sfad: Sfad
) -> None:
    with sfad.reserve("claude", input_tokens=1, max_output_tokens=1) as held:
        daemon.restart()
        held.settle(input_tokens=1, output_tokens=1)
    daemon.restart()
    sfad.report(turns=1)
    assert [type(request) for request in daemon.asked] == [m.Reserve, m.Settle, m.Report], (
        "each once"
    )


def test_a_daemon_that_is_away_is_waited_for(daemon: Scripted, sfad: Sfad) -> None:
    sfad.report(turns=1)
    daemon.stop()
    back = threading.Timer(0.4, daemon.start)
    back.start()
    sfad.report(turns=2)
    back.join()
    assert [getattr(request, "turns", None) for request in daemon.asked] == [1, 2]


def test_a_daemon_that_stays_away_is_unreachable_and_waited_for_once(
    daemon: Scripted, sfad: Sfad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfactl.connecting.connection.RECONNECT", 0.3)
    sfad.report(turns=1)
    daemon.stop()
    with pytest.raises(
        DaemonUnreachable, match=r"did not come back within 0\.3 s; nothing was sent"
    ) as raised:
        sfad.report(turns=2)
    assert raised.value.kind == "missing"
    with pytest.raises(DaemonUnreachable, match="does not exist"):
        sfad.report(turns=3)
    daemon.start()
    sfad.report(turns=4)
    assert [getattr(request, "turns", None) for request in daemon.asked] == [1, 4]


def test_a_daemon_that_is_away_is_not_waited_for_longer_than_for_an_answer(
    daemon: Scripted,
) -> None:
    with Sfad(socket=str(daemon.path), timeout=1) as sfad:
        sfad.report(turns=1)
        daemon.stop()
        with pytest.raises(DaemonUnreachable, match=r"within 1 s"):
            sfad.report(turns=2)
    daemon.start()


def test_an_answer_may_still_take_no_longer_after_a_restart(daemon: Scripted) -> None:
    with Sfad(socket=str(daemon.path), timeout=1) as sfad:
        sfad.report(turns=1)
        daemon.restart()
        daemon.answer = lambda _request: ()
        with pytest.raises(Unanswered, match="1 s"):
            sfad.report(turns=2)


def test_a_question_waits_for_the_daemon(daemon: Scripted, sfad: Sfad) -> None:
    daemon.answer = lambda request: agreeable(request) if len(daemon.asked) > 1 else ()
    restart = threading.Timer(0.3, daemon.restart)
    restart.start()
    assert sfad.info().id == "a1"
    restart.join()
    assert [type(request) for request in daemon.asked] == [m.Info, m.Info]


def test_what_may_have_been_taken_is_not_sent_twice(daemon: Scripted, sfad: Sfad) -> None:
    daemon.answer = lambda _request: None
    with pytest.raises(Unanswered, match="the report was sent but not answered"):
        sfad.report(turns=1)
    assert len(daemon.asked) == 1
    daemon.answer = agreeable
    sfad.report(turns=1)


def test_a_question_is_asked_again(daemon: Scripted, sfad: Sfad) -> None:
    daemon.answer = lambda request: agreeable(request) if len(daemon.asked) > 1 else None
    assert sfad.info().id == "a1"
    assert [type(request) for request in daemon.asked] == [m.Info, m.Info]


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(daemon: Scripted) -> None:
    told = threading.Event()
    daemon.answer = lambda request: agreeable(request) if told.wait(60) else None
    with Sfad(socket=str(daemon.path), timeout=0.5) as sfad:
        with pytest.raises(Unanswered, match=r"0\.5 s"):
            sfad.report(turns=1)
        told.set()
        with Sfad(socket=str(daemon.path)) as patient:
            patient.report(turns=2)


def test_threads_take_turns(daemon: Scripted, sfad: Sfad) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: sfad.report(turns=n), range(1, 101)))
    assert len(found) == 100
    assert sorted(getattr(request, "turns", 0) for request in daemon.asked) == list(range(1, 101))
    assert daemon.greeted == 1


async def test_from_trio(daemon: Scripted, sfad: Sfad) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(trio.to_thread.run_sync, lambda: sfad.report(turns=1))
    assert len(daemon.asked) == 3


def test_a_fork_has_a_connection_of_its_own(
    daemon: Scripted, sfad: Sfad, monkeypatch: pytest.MonkeyPatch
) -> None:
    sfad.report(turns=1)
    monkeypatch.setattr(os, "getpid", os.getppid)  # a child of fork() has another pid
    sfad.report(turns=2)
    assert daemon.greeted == 2
