"""Each figure is the bill of the provider, to 1 %, or marked as a bound on the right side, however
a call or its run ends.

The six minutes of a pause are simulated where no process is needed (tests/core/test_money.py): the
core is told the time.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, Literal

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, ended, wait_until
from tests.tiers import first, variant

from .agents import info, limit
from .provider import Provider
from .test_gateway import calling, config, frozen, killed_gateway, passed, results

Mark = Literal["exact", "at least", "at most", "about"]
"""What a figure says of itself."""

MARKS: dict[tuple[bool, bool], Mark] = {
    (False, False): "exact",
    (True, False): "at least",
    (False, True): "at most",
    (True, True): "about",
}
"""By `partial` and `at_most`."""


@pytest.fixture
def serving(share: Start, provider: Provider) -> Daemon:
    """A daemon whose gateway leads to the provider, which may have served other tests."""
    return share(config=config(provider))


def assert_is_the_bill(daemon: Daemon, run: RunInfo, provider: Provider, mark: Mark) -> None:
    """Fail unless each view of the run has the bill of the provider, or a bound on its right side
    with this mark."""
    bill, figure = provider.usd, run.total_cost_usd
    assert figure is not None
    assert MARKS[run.total_partial, run.total_at_most] == mark
    assert mark in {"at least", "about"} or figure >= 0.99 * bill, (figure, bill)
    assert mark in {"at most", "about"} or figure <= 1.01 * bill, (figure, bill)
    assert (run.usage.cost_usd, run.usage.partial, run.usage.at_most) == (
        figure,
        run.total_partial,
        run.total_at_most,
    )
    calls = [
        json.loads(line) for line in daemon.sfactl("calls", "--json", run.id).stdout.splitlines()
    ]
    assert sum(
        call["cost_usd"] or 0 for call in calls if call["state"] == "ended"
    ) == pytest.approx(figure)
    listed = json.loads(daemon.sfactl("list", "--json").stdout)["runs"]
    (row,) = [each for each in listed if each["id"] == run.id]
    assert (row["total_cost_usd"], row["total_partial"], row["total_at_most"]) == (
        figure,
        run.total_partial,
        run.total_at_most,
    )
    words = "cost" if mark == "exact" else f"cost {mark}"
    assert f"{words} {figure:.2f}"[:-1] in daemon.sfactl("info", run.id).stdout


# ---- how a call ends


@first(3)
@pytest.mark.parametrize(
    ("does", "mark"),
    [
        (None, "exact"),
        ("500", "exact"),
        ("reset", "at least"),
        ("429", "exact"),
        ("529", "exact"),
        ("thinks", "exact"),
        ("caches", "exact"),
        ("fast", "exact"),
        ("error", "at least"),
    ],
)
def test_however_a_call_ends(
    serving: Daemon, provider: Provider, does: str | None, mark: Mark
) -> None:
    with serving.client() as client:
        run = ended(client, calling(client, limit("cost", 5), does=does).id)
    assert_is_the_bill(serving, run, provider, mark)


@first(1)
@pytest.mark.parametrize(("padding", "bytes_a_token"), [(10, 1.2), (60_000, 5.0)])
def test_a_call_that_never_begins_to_be_answered(
    serving: Daemon, provider: Provider, padding: int, bytes_a_token: float
) -> None:
    """It may have cost nothing, its input, or more."""
    provider.bytes_a_token = bytes_a_token
    with serving.client() as client:
        run = ended(
            client, calling(client, limit("cost", 5), does="hang", hang_up=0.5, padding=padding).id
        )
    assert_is_the_bill(serving, run, provider, "about")


# ---- how its run, its gateway or its daemon ends


def in_the_middle(daemon: Daemon, provider: Provider, client: Client, **plan: Any) -> RunInfo:
    """Return a run with a reply in its middle, which the gateway has noted."""
    run = calling(client, limit("cost", 5), stall=True, **plan)
    wait_until(lambda: provider.stalled == 1, "a reply is in its middle")
    passed(daemon, provider)
    return info(client, run.id)


@first(1)
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT", "stop"])
def test_however_a_run_ends(serving: Daemon, provider: Provider, how: str) -> None:
    with serving.client() as client:
        run = in_the_middle(serving, provider, client)
        if how == "stop":
            assert serving.sfactl("stop", run.id).returncode == 0
        else:
            assert run.pid is not None
            os.kill(run.pid, signal.Signals[how])
        over = ended(client, run.id)
    assert_is_the_bill(serving, over, provider, "at least")


def test_a_killed_daemon_loses_nothing(serving: Daemon, provider: Provider, tmp_path: Path) -> None:
    done = tmp_path / "done"
    with serving.client() as client:
        run = in_the_middle(serving, provider, client, then=str(done))
    serving.kill()
    provider.released.set()
    wait_until(lambda: results(serving, run.id), "the call has ended")
    serving.restart()
    done.touch()
    with serving.client() as client:
        over = ended(client, run.id)
    assert_is_the_bill(serving, over, provider, "exact")


def test_a_gateway_that_is_killed_in_the_middle_of_a_reply(
    serving: Daemon, provider: Provider
) -> None:
    with serving.client() as client:
        run = in_the_middle(serving, provider, client)
        killed_gateway(serving)
        over = ended(client, run.id)
    assert_is_the_bill(serving, over, provider, "at least")


@variant
def test_a_gateway_that_is_killed_before_a_reply_begins_leaves_an_upper_bound_that_ends_no_run(
    serving: Daemon, provider: Provider
) -> None:
    """The bound takes all of the limit, and the next call is refused alone."""
    with serving.client() as client:
        run = calling(client, limit("cost", 0.31), does="hang", calls=2, on=True)
        wait_until(lambda: provider.stalled == 1, "the call is at the provider")
        killed_gateway(serving)
        over = ended(client, run.id)
    assert_is_the_bill(serving, over, provider, "at most")
    assert over.reason is not None
    assert (over.status, over.reason.limit_kind) == (Status.FAILED, None)
    _, second = results(serving, run.id)
    assert (second["status"], "may not have been used" in second["said"]) == (400, True)


@variant
def test_a_run_that_is_paused_in_the_middle_of_a_reply(serving: Daemon, provider: Provider) -> None:
    with serving.client() as client:
        run = in_the_middle(serving, provider, client)
        client.call(m.Pause(id=client.next_id(), run=run.id), m.RunReply)
        assert frozen(run.pid)
        provider.released.set()
        client.call(m.Resume(id=client.next_id(), run=run.id), m.RunReply)
        over = ended(client, run.id)
    assert_is_the_bill(serving, over, provider, "exact")
    assert results(serving, run.id)[0]["whole"]
