"""Why a run waits, as clients show it: with a real daemon, real processes and a gateway."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec

from sfad.protocol import messages as m
from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import Daemon, started, wait_until

from .agents import info
from .provider import Provider
from .test_gateway import AMPLE, calling, config
from .test_run_feed import watching


def test_a_retry_is_shown_as_waiting_with_its_time(common: Daemon) -> None:
    with common.client() as client:
        run = started(client, ["false"], name="tries", attempts=3, retry_delay=600.0).id
        wait_until(lambda: info(client, run).status is Status.RETRYING, "the attempt failed")
        wait_until(lambda: info(client, run).holds[0].until is not None, "nothing is left of it")
        (hold,) = info(client, run).holds
        assert (hold.kind, hold.blocks, hold.clock_stops) == ("retry", "start", True)
        assert hold.since is not None
        assert hold.until is not None
        assert 300 - 1 < (hold.until - hold.since).total_seconds() < 600 + 60
    why = common.sfactl("why", run).stdout
    assert f"{run} (tries) is retrying: attempt 1 of 3 has failed; the next begins at" in why
    assert re.search(r"retrying \(next attempt, \d+m\d\ds left\)", common.sfactl("list").stdout)
    shown = msgspec.json.decode(common.sfactl("info", run, "--json").stdout)
    assert [(each["kind"], each["ends"]) for each in shown["holds"]] == [
        ("retry", "the delay before the next attempt is over")
    ]
    listed = msgspec.json.decode(common.sfactl("list", "--json").stdout)["runs"]
    assert [each["holds"][0]["kind"] for each in listed if each["id"] == run] == ["retry"]
    common.sfactl("stop", run)


def test_a_pause_is_told_below_it_too_and_outlives_the_daemon(start: Start) -> None:
    daemon = start()
    child = [sys.executable, "-m", "sfactl", "run", "--name", "below", "--", "sleep", "600"]
    with daemon.client() as client:
        top = started(client, child, name="top").id
        wait_until(lambda: info(client, top).descendants == 1, "its child is there")
        (below,) = [
            run.id
            for run in client.call(m.List(id=client.next_id(), root=top), m.RunList).runs
            if run.id != top
        ]
        wait_until(lambda: info(client, below).status is Status.RUNNING, "it runs")
        client.call(m.Pause(id=client.next_id(), run=top), m.RunReply)
        (by_hand,), (above,) = info(client, top).holds, info(client, below).holds
    assert (by_hand.kind, by_hand.command) == ("person", f"sfactl resume {top}")
    assert (above.kind, above.command) == ("ancestor", f"sfactl why {top}")
    assert f"run {top} ('top') above it is paused: by hand" in daemon.sfactl("why", below).stdout
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        (again,) = info(client, top).holds
        assert (again.kind, again.words) == ("person", "by hand")
        assert again.since is not None
        assert by_hand.since is not None
        assert abs((again.since - by_hand.since).total_seconds()) < 5
        client.call(m.Resume(id=client.next_id(), run=top), m.RunReply)
        assert (info(client, top).holds, info(client, below).holds) == ((), ())


def test_a_call_that_waits_for_its_turn_is_shown_with_its_run(
    start: Start, provider: Provider, tmp_path: Path
) -> None:
    daemon = start(config=f"{config(provider)}\n[gateway.per_user]\nconcurrent_calls = 1\n")
    with daemon.client() as client, watching(daemon) as watch:
        first = calling(client, *AMPLE, output=10, stall=True, then=str(tmp_path / "done")).id
        wait_until(lambda: provider.stalled == 1, "its call is under way")
        second = calling(client, *AMPLE, output=10, then=str(tmp_path / "done")).id
        watch.until(lambda runs: second in runs and bool(runs[second].holds))
        (hold,) = info(client, second).holds
        assert info(client, second).status is Status.RUNNING
        assert (hold.kind, hold.blocks, hold.clock_stops) == ("call", "call", False)
        assert "model call under way, and gateway.per_user.concurrent_calls" in hold.words
        assert f"(sfactl calls {second})" in daemon.sfactl("why", second).stdout
        assert "running (a model call waits)" in daemon.sfactl("list").stdout
        assert info(client, first).holds == ()
        provider.released.set()
        watch.until(lambda runs: not runs[second].holds)
        (tmp_path / "done").touch()
