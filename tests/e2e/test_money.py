"""Money: prices, reservations, budgets of users and teams."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

import pytest

from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, Status
from tests.conftest import Start
from tests.harness import Daemon, agent, ended, running, started, stopped

from .agents import MODEL, info, limit, reserve, sleeper, state, until_over


@pytest.fixture
def daemon(common: Daemon) -> Daemon:
    return common


def test_a_report_is_priced_and_ends_the_run_that_it_takes_too_far(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = sleeper(client, ("cost", 0.30))
        words = [
            "report",
            run.id,
            "--model",
            MODEL,
            "--input-tokens",
            "100000",
            "--output-tokens",
            "10000",
            "--json",
        ]
        assert daemon.sfactl(*words).returncode == 0
        over, _ = until_over(client, run.id)
    assert over.reason is not None
    assert (over.status, over.reason.limit_kind, over.reason.used) == (Status.FAILED, "cost", 0.45)
    assert (over.usage.cost_usd, over.usage.cost_from, over.usage.source) == (
        0.45,
        "prices",
        "report",
    )
    assert daemon.sfactl("wait", run.id).returncode == 4


def test_a_model_without_a_price_costs_as_much_as_the_dearest_and_is_reported_once(
    daemon: Daemon,
) -> None:
    with daemon.client() as client:
        run = sleeper(client)
        for _ in range(3):
            report = m.Report(
                id=client.next_id(),
                run=run.id,
                model="claude-unheard-of",
                input_tokens=10,
                output_tokens=1,
            )
            client.call(report, m.RunReply)
        usage = info(client, run.id).usage
        assert (usage.cost_usd, usage.estimated, usage.tokens) == (0.000675, True, 33)
        stopped(client, run.id)
        _, events = until_over(client, run.id)
    assert len([event for event in events if event.type == "meter_unpriced"]) == 1


def test_prices_of_the_config_come_first(start: Start) -> None:
    daemon = start(config=f'[prices."{MODEL}"]\ninput_mtok = 1\noutput_mtok = 2')
    with daemon.client() as client:
        run = sleeper(client)
        report = m.Report(
            id=client.next_id(), run=run.id, model=MODEL, input_tokens=100_000, output_tokens=10_000
        )
        assert client.call(report, m.RunReply).run.usage.cost_usd == 0.12
        stopped(client, run.id)


def test_children_that_reserve_at_once_never_take_more_than_their_parent_has(
    tmp_path: Path, daemon: Daemon
) -> None:
    child = """
from sfactl.client import LimitReached, Sfad
with Sfad() as sfad:
    try:
        # 0.18 USD
        held = sfad.reserve("claude-sonnet-4-5", input_tokens=10_000, max_output_tokens=10_000)
        print("held", flush=True)
    except LimitReached:
        print("refused", flush=True)
time.sleep(60)
"""
    worker = agent(tmp_path, "worker", child)
    script = f"""
for i in range(10):
    words = [sys.executable, "-m", "sfactl", "run", "--name", f"w{{i}}", "--", *{worker!r}]
    subprocess.Popen(words)
time.sleep(60)
"""
    with daemon.client() as client:
        run = started(client, agent(tmp_path, "parent", script), limits=[limit("cost", 1)])
        over = ended(client, run.id)
        rows = client.call(m.List(id=client.next_id(), root=run.id), m.RunList).runs
    assert over.reason is not None
    assert (over.status, over.reason.limit_kind) == (Status.FAILED, "cost")
    assert "asked for" in over.reason.message
    held = sum(row.usage.cost_usd or 0 for row in rows)
    assert 0.9 - 1e-9 <= held <= 1  # five of 0.18; a sixth would have been too much
    assert state(over, "cost")[0] is not None
    assert (state(over, "cost")[0] or 0) <= 1


def test_a_reservation_is_settled_or_charged_in_full(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = sleeper(client, ("cost", 1))
        first, second = (
            reserve(client, run.id, 10_000, 10_000),
            reserve(client, run.id, 10_000, 10_000),
        )
        assert (first.cost_usd, second.cost_usd) == (0.18, 0.18)
        (held,) = (each for each in info(client, run.id).limits if each.kind == "cost")
        assert (held.used, held.reserved) == (0, 0.36)
        assert first.reservation is not None
        settle = m.Settle(
            id=client.next_id(), reservation=first.reservation, input_tokens=10_000, output_tokens=0
        )
        assert client.call(settle, m.RunReply).run.usage.cost_usd == 0.03
        assert (
            daemon.sfactl(
                "settle", first.reservation, "--input-tokens", "1", "--output-tokens", "1"
            ).returncode
            == 1
        )
        stopped(client, run.id)
        over, _ = until_over(client, run.id)
    assert over.usage.cost_usd == 0.21
    assert over.usage.input_tokens == 20_000


ABSURD: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (
        {"input_tokens": 1, "cached_tokens": 10**10},
        ("cached_tokens = 10000000000", "input_tokens = 1", "add them to input_tokens"),
    ),
    (
        {"input_tokens": 10, "cached_tokens": 6, "cache_write_tokens": 5},
        ("cached_tokens = 6", "cache_write_tokens = 5", "= 10"),
    ),
    ({"output_tokens": 1, "cached_tokens": 1}, ("cached_tokens = 1", "input_tokens = 0")),
    ({"input_tokens": 1, "cache_write_tokens": 2}, ("cache_write_tokens = 2", "input_tokens = 1")),
    ({"input_tokens": 10**11}, ("input_tokens = 100000000000 is outside 0 to 10000000000",)),
    ({"output_tokens": -1}, ("output_tokens = -1 is outside",)),
    ({"turns": 2**63}, ("turns = 9223372036854775808 is outside",)),
    ({"cost_usd": 1e12}, ("cost_usd = 1000000000000.0 is outside 0 to 10000",)),
    ({"cost_usd": -0.01}, ("cost_usd = -0.01 is outside",)),
    ({"cost_usd": float("nan")}, ("cost_usd = nan is outside",)),
    ({"cost_usd": float("inf")}, ("cost_usd = inf is outside",)),
    ({"turns": True}, ("turns",)),
]
"""What an agent may report, and what it is told."""


def test_an_impossible_amount_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    config = f"[budgets.users.{getpass.getuser()}]\ndaily_usd = 5"
    with running(tmp_path, config=config) as daemon, daemon.client() as client:
        run = sleeper(client, ("cost", 1))
        held = reserve(client, run.id, 10_000, 10_000).reservation
        assert held is not None
        for amounts, says in ABSURD:
            settled = {"input_tokens": 0, "output_tokens": 0} | amounts
            for request in (
                m.Report(id=client.next_id(), run=run.id, model=MODEL, **amounts),
                m.Settle(id=client.next_id(), reservation=held, **settled),
            ):
                client.send(request)
                (answer,) = client.arrived()
                assert isinstance(answer.reply, m.Error), (request, answer.reply)
                assert answer.reply.code is ErrorCode.BAD_REQUEST
                assert all(words in answer.reply.message for words in says), answer.reply.message
        words = [
            "report",
            run.id,
            "--model",
            MODEL,
            "--input-tokens",
            "1",
            "--cached-tokens",
            "100M",
        ]
        done = daemon.sfactl(*words)
        assert (done.returncode, "cached_tokens = 100000000" in done.stderr) == (2, True)
        assert info(client, run.id).usage.cost_usd is None
        (budget,) = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).budgets
        assert (budget.used_usd, budget.reserved_usd) == (0, 0.18), "it is still held"
        whole = m.Settle(
            id=client.next_id(),
            reservation=held,
            input_tokens=10_000,
            output_tokens=0,
            cached_tokens=10_000,
        )
        assert client.call(whole, m.RunReply).run.usage.cost_usd == 0.003
        stopped(client, run.id)


def test_a_stream_that_lies_is_priced_for_the_input_that_it_tells(start: Start) -> None:
    daemon = start(config=f'[prices."{MODEL}"]\ninput_mtok = 1\noutput_mtok = 2\ncached_mtok = 0.1')
    told = [
        {
            "type": "usage",
            "model": MODEL,
            "input_tokens": 1000,
            "cached_tokens": 1e10,
            "cache_write_tokens": 1e10,
        },
        {
            "type": "usage",
            "model": MODEL,
            "input_tokens": 1e12,
            "output_tokens": -1,
            "cost_usd": 1e12,
        },
        {"type": "usage", "turns": True, "messages": 1e400},
    ]
    script = "; ".join(f"echo '{json.dumps(each)}'" for each in told)
    with daemon.client() as client:
        usage = ended(client, started(client, ["sh", "-c", script], meter="jsonl").id).usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (1000, 1000, 0)
    assert usage.cost_usd == 0.0001


def test_a_user_with_an_exhausted_budget_is_told_when_it_renews(tmp_path: Path) -> None:
    user = getpass.getuser()
    config = (
        f"[budgets.users.{user}]\ndaily_usd = 0.5\n[budgets.teams.blue]\nusd = 9\nperiod = "
        f'"month"\nmembers = ["{user}"]'
    )
    with running(tmp_path, config=config) as daemon, daemon.client() as client:
        run = sleeper(client)
        refused = reserve(client, run.id, 100_000, 20_000)  # 0.60 USD, of 0.50
        assert refused.refused is not None
        assert (refused.refused.scope, refused.refused.whose, refused.reservation) == (
            "user",
            user,
            None,
        )
        assert info(client, run.id).status is Status.RUNNING
        client.call(m.Report(id=client.next_id(), run=run.id, cost_usd=0.5), m.RunReply)
        stopped(client, run.id)
        done = daemon.sfactl("spawn", "--", "true")
        assert done.returncode == 1
        assert "renews at" in done.stderr
    # charged as use arrives, and kept: the next daemon knows
    with running(tmp_path, config=config) as daemon:
        done = daemon.sfactl("spawn", "--json", "--", "true")
        assert done.returncode == 1
        refusal = json.loads(done.stdout)["refused"]
        assert refusal["kind"] == "budget"
        assert f"user {user} has used 0.50 of 0.50 USD" in refusal["detail"]
