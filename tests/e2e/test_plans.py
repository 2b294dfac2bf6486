"""Subscriptions between real processes: nights of agents in minutes, with windows of seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sfactl.connecting.connection import Client
from sfad.host.probe import user_name
from sfad.protocol import messages as m
from sfad.protocol.requests.windows import SubscriptionInfo
from sfad.protocol.types import RunId, RunInfo, Status
from tests.codex import codex
from tests.conftest import Start
from tests.harness import (
    PATIENCE,
    Daemon,
    ended,
    environment,
    running,
    spawn,
    started,
    stopped,
    wait_until,
)
from tests.tiers import first, variant

from .agents import info, limit
from .subscription import Account, Quota, beside_sfad, selling

SUBSCRIBER = str(Path(__file__).with_name("subscriber.py"))
TOKEN = "sk-ant-oat01-kept-nowhere"  # noqa: S105 - it opens nothing
CONFIG = """
[gateway]
enabled = true
[gateway.upstreams.anthropic]
url = "{anthropic}"
api = "anthropic"
[gateway.upstreams.openai]
url = "{openai}/v1"
api = "openai-responses"
[plans]
keep = "30%"
keep_week = "20%"
action = "{action}"
[quotas]
spawns_per_hour = 100000
"""


@pytest.fixture
def account() -> Iterator[Account]:
    """A subscription whose shorter window takes 4 s, of which each call takes 7 %."""
    with selling(Quota("5h", 4.0, 0.07), Quota("7d", 600.0, 0.001), w5h=0.7, w7d=0.8) as made:
        yield made


def config(anthropic: Account, openai: Account | None = None, action: str = "hold") -> str:
    return CONFIG.format(anthropic=anthropic.url, openai=(openai or anthropic).url, action=action)


def subscribe(
    client: Client,
    calls: int,
    *words: str,
    name: str = "agent",
    variables: Sequence[str] = (),
    **options: object,
) -> RunId:
    """Start an agent that makes so many calls."""
    argv = [sys.executable, SUBSCRIBER, str(calls), *words]
    env = [*environment(), f"TOKEN={TOKEN}".encode(), *(each.encode() for each in variables)]
    reply = spawn(client, argv, name=name, env=env, **options)
    assert isinstance(reply, m.RunReply), reply
    return reply.run.id


def plans(client: Client) -> dict[str, m.SubscriptionInfo]:
    return {
        each.provider: each
        for each in client.call(m.ListSubscriptions(id=0), m.SubscriptionList).accounts
    }


def all_ended(daemon: Daemon, runs: Sequence[RunId]) -> list[RunInfo]:
    with daemon.client() as client:
        return [ended(client, run) for run in runs]


def no_call_was_made_above(account: Account) -> None:
    """No agent called once it had been told that it may not, but for what was under way."""
    late = [
        each
        for each in account.arrivals
        if TOKEN in each.login and each.told >= 0 and each.at - each.told_at > 1.0
    ]
    assert not late


@pytest.mark.parametrize("longer_than_the_window", [False, True])
@pytest.mark.rest("keeps a processor busy for seconds")
def test_a_night_of_ten_agents(
    start: Start, account: Account, longer_than_the_window: bool
) -> None:
    """The daemon is killed, and comes back at once, or when the shorter window has been reset."""
    with selling(Quota("5h", 5.0, 0.07), Quota("7d", 600.0, 0.001), w5h=0.7, w7d=0.8) as openai:
        daemon = start(config=config(account, openai))
        with daemon.client() as client:
            runs = [subscribe(client, 5, name=f"one-{number}") for number in range(4)]
            runs += [subscribe(client, 5, "openai", name=f"two-{number}") for number in range(3)]
            runs += [
                subscribe(client, 5, name=f"three-{number}", priority=5) for number in range(3)
            ]
            wait_until(
                lambda: plans(client)["anthropic"].held if "anthropic" in plans(client) else None,
                "runs wait for the reset",
            )
            held = info(client, plans(client)["anthropic"].held[0])
        assert held.status is Status.PAUSED
        assert held.reason is not None
        assert held.reason.limit_kind == "plan"
        assert "the 5h window is" in held.reason.message
        assert "it resets at" in held.reason.message
        person = threading.Thread(target=beside_sfad, args=[account, 2.0])
        person.start()
        daemon.kill()
        if longer_than_the_window:
            ends = account.quotas[0].ends
            wait_until(lambda: time.time() > ends, "the window is reset while no daemon is there")
        daemon.restart()
        restarted = datetime.now(UTC)
        with daemon.client() as client:
            found = plans(client)
            assert {each.window for each in found["anthropic"].windows} == {"5h", "7d"}
        done = all_ended(daemon, runs)
        person.join()
        # how an agent ended while no daemon was there cannot be known; the counts below show that
        # it made all its calls
        assert {run.status for run in done if run.ended_at and run.ended_at > restarted} == {
            Status.COMPLETED
        }
        assert {run.status for run in done} <= {Status.COMPLETED, Status.LOST}
        assert (account.answered, openai.answered) == (35, 15)
        for each in (account, openai):
            no_call_was_made_above(each)
        by_window = {share.window for run in done for share in run.plans}
        assert {"5h", "primary"} <= by_window
        sums = {
            name: sum(each.share for run in done for each in run.plans if each.window == name)
            for name in by_window
        }
        assert sums["5h"] <= 35 * 0.07 + 3 * 0.1 + 0.001
        assert sums["primary"] <= 15 * 0.07 + 0.001, (
            "replies overtake each other, and nothing is divided twice"
        )
        kept = [path for path in daemon.directory.rglob("*") if path.is_file()]
        assert not [path for path in kept if TOKEN.encode() in path.read_bytes()]


def test_what_codex_writes_of_a_subscription_is_of_the_one_that_the_gateway_knows(
    start: Start, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    told = {"used_percent": 11.0, "window_minutes": 300}
    program = codex(tmp_path, (None, told), first=[sys.executable, SUBSCRIBER, "1", "openai"])
    with selling(Quota("5h", 600.0, 0.07)) as account:
        daemon = start(config=config(account))
        with daemon.client() as client:
            env = [
                f"CODEX_HOME={home}".encode(),
                f"TOKEN={TOKEN}".encode(),
                f"PATH={tmp_path}:/usr/bin:/bin".encode(),
            ]
            reply = spawn(client, [str(program), "exec", "x"], env=env, cwd=str(tmp_path).encode())
            assert isinstance(reply, m.RunReply), reply
            wait_until(
                lambda: plans(client) and plans(client)["openai"].windows[0].used_ratio == 0.11,
                "its session file is read",
            )
            (known,) = client.call(m.ListSubscriptions(id=0), m.SubscriptionList).accounts
            (share,) = info(client, reply.run.id).plans
            assert (share.window, round(share.share, 6)) == ("primary", 0.04)
            client.call(m.Stop(id=0, runs=[reply.run.id]), m.Stopped)
        assert known.provider == "openai"


def test_one_refused_call_is_enough_and_its_agent_learns_nothing(start: Start) -> None:
    with selling(Quota("5h", 4.0, 0.3)) as account:
        daemon = start(config=config(account).replace('"30%"', '"0%"'))
        account.use(1.0)
        with daemon.client() as client:
            runs = [subscribe(client, 2, name=f"a{number}") for number in range(3)]
        done = all_ended(daemon, runs)
        assert [run.status for run in done] == [Status.COMPLETED] * 3
        refused = [each for each in account.arrivals if each.status == 429]
        assert all(
            each.at - refused[0].at < 1.0 or each.at >= refused[0].at + 1.5 for each in refused
        )
        shown = daemon.sfactl("plans", "--json")
        assert json.loads(shown.stdout)["accounts"][0]["windows"][0]["window"] == "5h"


@first(1)
@pytest.mark.parametrize("words", [(), ("openai",)])
def test_a_burst_holds_no_run(start: Start, words: tuple[str, ...]) -> None:
    with selling(Quota("5h", 600.0, 0.05)) as account:
        account.bursts = 1
        daemon = start(config=config(account))
        with daemon.client() as client:
            first = ended(client, subscribe(client, 2, *words, name="first"))
            second = ended(client, subscribe(client, 2, *words, name="second"))
            (known,) = plans(client).values()
        said = json.loads(daemon.sfactl("logs", first.id).stdout.splitlines()[-1])
    assert (first.status, said["status"]) == (Status.FAILED, 429), "its agent may try again"
    assert second.status is Status.COMPLETED
    assert [each.rejected for each in known.windows] == [False]
    assert account.answered == 2


@first(1)
@pytest.mark.parametrize(
    ("words", "variable"), [((), "ANTHROPIC_BASE_URL"), (("openai",), "OPENAI_BASE_URL")]
)
def test_a_server_of_a_users_own_tells_of_nobodys_windows(
    start: Start, words: tuple[str, ...], variable: str
) -> None:
    with (
        selling(Quota("5h", 600.0, 0.05)) as account,
        selling(Quota("5h", 399 * 86400.0, 0.05)) as liar,
    ):
        liar.use(1.0)
        daemon = start(config=config(account))
        own = [f"{variable}={liar.url}"]
        with daemon.client() as client:
            first = ended(client, subscribe(client, 1, *words, name="first"))
            lied_to = ended(client, subscribe(client, 1, *words, name="lied-to", variables=own))
            second = ended(client, subscribe(client, 1, *words, name="second"))
            (known,) = plans(client).values()
        said = json.loads(daemon.sfactl("logs", lied_to.id).stdout.splitlines()[-1])
    assert [run.status for run in (first, second)] == [Status.COMPLETED] * 2
    assert (lied_to.status, said["status"]) == (Status.FAILED, 429)
    assert len(liar.arrivals) == 1
    assert [(each.used_ratio, each.rejected) for each in known.windows] == [(0.1, False)]
    assert known.user == user_name(os.getuid())


def test_refuse_is_an_answer_in_the_providers_form(start: Start, account: Account) -> None:
    daemon = start(config=config(account, action="refuse"))
    with daemon.client() as client:
        first = subscribe(client, 11)
        run = ended(client, first)
    assert run.status is Status.FAILED
    last = json.loads(daemon.sfactl("logs", first).stdout.splitlines()[-1])
    assert last["status"] == 400
    error = json.loads(last["said"])["error"]
    assert "the 5h window is 70 % used, agents may use 70 %; it resets at " in error["message"]
    assert account.answered == 10


def test_new_roots_queue_and_are_told_why(start: Start) -> None:
    with selling(Quota("5h", 12.0, 0.4)) as account:
        daemon = start(config=config(account))
        with daemon.client() as client:
            first = subscribe(client, 2, name="first")
            ended(client, first)
            second = subscribe(client, 1, name="second")
            run = info(client, second)
            assert run.status is Status.QUEUED
            assert run.reason is not None
            assert "agents may use 70 %" in run.reason.message
            assert "resets at" in daemon.sfactl("why", second).stdout
            third = daemon.sfactl("spawn", "--name", "third", "--", sys.executable, SUBSCRIBER, "1")
            assert "agents may use 70 %" in third.stderr
            assert daemon.sfactl("stop", third.stdout.strip()).returncode == 0
            assert second in daemon.sfactl("plans").stdout
            daemon.reexecute()
            assert second in daemon.sfactl("plans").stdout
            daemon.kill()
            daemon.restart()
        done = all_ended(daemon, [second])
        assert done[0].status is Status.COMPLETED


def test_a_tree_takes_no_more_of_a_window_than_its_limit(start: Start) -> None:
    with selling(Quota("5h", 600.0, 0.04)) as account:
        daemon = start(config=config(account))
        with daemon.client() as client:
            run = ended(client, subscribe(client, 9, limits=[limit("plan", 10)]))
        assert run.reason is not None
        assert (run.status, run.reason.limit_kind) == (Status.FAILED, "plan")
        assert 3 <= account.answered <= 6
        (state,) = [each for each in run.limits if each.kind == "plan"]
        assert (state.threshold, state.enforced_by) == (10.0, "gateway")


def test_what_its_limit_has_paused_goes_on_at_the_reset(start: Start) -> None:
    with selling(Quota("5h", 4.0, 0.04)) as account:
        daemon = start(config=config(account))
        with daemon.client() as client:
            run = subscribe(client, 9, limits=[limit("plan", 10, "pause")])
            held = wait_until(
                lambda: found if (found := info(client, run)).status is Status.PAUSED else None,
                "it is paused",
            )
            done = ended(client, run)
    assert held.reason is not None
    assert (held.reason.limit_kind, held.reason.threshold) == ("plan", 10.0)
    assert "; it goes on when the window is reset" in held.reason.message
    assert (done.status, account.answered) == (Status.COMPLETED, 9)


@variant
def test_a_held_run_in_the_foreground_ends_at_ctrl_c(start: Start) -> None:
    with selling(Quota("5h", 600.0, 0.4)) as account:
        daemon = start(config=config(account))
        words = [
            sys.executable,
            "-m",
            "sfactl",
            "run",
            "--name",
            "held",
            "--",
            sys.executable,
            SUBSCRIBER,
            "9",
        ]
        foreground = subprocess.Popen(
            words,
            env=daemon.env | {"TOKEN": TOKEN},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with daemon.client() as client:
            held = wait_until(
                lambda: next((run for each in plans(client).values() for run in each.held), None),
                "it is held",
            )
            assert info(client, held).status is Status.PAUSED
            os.killpg(foreground.pid, signal.SIGINT)
            _, told = foreground.communicate(timeout=PATIENCE)
            run = info(client, held)
        assert (foreground.returncode, run.status) == (130, Status.CANCELLED), told
        assert "resets at" in told


@variant
def test_what_an_agent_writes_of_a_subscription_breaks_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    absurd = [
        (at, {"used_percent": percent, "window_minutes": 300, "resets_at": 9e11})
        for at, percent in (("9999-12-31T23:59:59-23:00", 81), ("9000-01-01T00:00:00Z", 85))
    ]
    program = codex(tmp_path, *absurd)
    with running(tmp_path) as daemon, daemon.client() as client:
        env = [b"CODEX_HOME=" + os.fsencode(home), b"PATH=/usr/bin:/bin"]
        home.mkdir()
        run = started(client, [str(program), "exec", "x"], cwd=os.fsencode(home), env=env)

        def told() -> list[SubscriptionInfo]:
            return client.call(m.ListSubscriptions(id=0), m.SubscriptionList).accounts

        wait_until(told, "it is heard of")
        (account,) = told()
        assert account.heard_at <= datetime.now(UTC)
        assert [(each.used_ratio, each.resets_at) for each in account.windows] == [(0.85, None)]
        assert client.call(m.DaemonInfo(id=0), m.DaemonStatus).plans == [account]
        stopped(client, run.id)
