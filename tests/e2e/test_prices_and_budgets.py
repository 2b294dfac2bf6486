"""Money where it has been lost before: reloads, retries, shortages, calendars, and agents that make
a noise."""

from __future__ import annotations

import getpass
import json
import os
import resource
import signal
import sqlite3
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sfactl.connecting.connection import DaemonError
from sfad.durable.budgets import period
from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, Status
from tests.conftest import Start
from tests.harness import Daemon, alive, ended, running, started, stopped, wait_until
from tests.tiers import first, variant

from .agents import info, limit, reserve, sleeper, state, until_event, until_over, watched

MODEL = "claude-opus-4-1"
USER = getpass.getuser()


def charged(daemon: Daemon) -> float:
    """What the ledger says of the user's budget."""
    with closing(sqlite3.connect(daemon.state_dir / "ledger.db")) as ledger:
        return float(sum(row[0] for row in ledger.execute("SELECT charged_usd FROM budgets")))


def claude(**event: object) -> str:
    """A line of Python that prints one event."""
    return f"print({json.dumps(json.dumps(event))}, flush=True)"


@variant
def test_a_settlement_after_a_reexecution_is_priced(start: Start) -> None:
    daemon = start(config=f"[budgets.users.{USER}]\ndaily_usd = 50")
    with daemon.client() as client:
        run = sleeper(client)
        held = [reserve(client, run.id, 1000, 2000).reservation for _ in range(3)]
    daemon.reexecute()
    with daemon.client() as client:
        for name in held:
            assert name is not None
            settled = m.Settle(
                id=client.next_id(), reservation=name, input_tokens=1000, output_tokens=1000
            )
            usage = client.call(settled, m.RunReply).run.usage
        stopped(client, run.id)
    assert (usage.cost_usd, usage.unpriced_tokens) == (0.054, None)
    wait_until(lambda: abs(charged(daemon) - 0.054) < 1e-9, "the ledger has the settlements")


def slow_prices(directory: Path, body: str) -> str:
    """For `PYTHONPATH`: a price list that does `body` before it is loaded."""
    package = directory / "first" / "genai_prices"
    package.mkdir(parents=True)
    lines = [
        "import sys", body, f"sys.path.remove({str(package.parent)!r})",
        "del sys.modules['genai_prices']", "import genai_prices",
        "sys.modules['genai_prices'] = genai_prices",
    ]  # fmt: skip
    (package / "__init__.py").write_text("\n".join(lines))
    return str(package.parent)


def said(number: int, tokens: int) -> str:
    """A line of Python that prints one call of the model."""
    usage = {"input_tokens": tokens, "output_tokens": 100}
    return claude(
        type="assistant",
        session_id="s",
        message={"id": f"m{number}", "model": MODEL, "content": [], "usage": usage},
    )


@variant
def test_an_end_that_waits_for_prices_is_priced_before_a_reexecution(
    start: Start, tmp_path: Path
) -> None:
    daemon, gate = start(), tmp_path / "gate"
    daemon.kill()
    daemon.restart(
        PYTHONPATH=slow_prices(
            tmp_path, f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
        )
    )
    with daemon.client() as client:
        run = started(
            client,
            [sys.executable, "-c", f"{said(1, 200_000)}\nraise SystemExit(3)"],
            meter="claude",
        )
        wait_until(lambda: not alive(run.pid), "its main process has ended")
        os.kill(daemon.pid, signal.SIGUSR2)
        wait_until(lambda: "re-executing" in daemon.log.read_text(), "the re-execution has begun")
        gate.touch()
    wait_until(lambda: daemon.log.read_text().count('"message":"serving"') > 2, "it serves again")
    with daemon.client() as client:
        over = ended(client, run.id)
    assert (over.exit_code, over.usage.cost_usd) == (3, 3.0075)


def test_a_daemon_without_prices_does_not_lower_the_cost_of_a_run(
    start: Start, tmp_path: Path
) -> None:
    """Nor does a tree stay paused for a budget that was raised while no daemon was there."""
    daemon, go = start(config=f"[budgets.users.{USER}]\ndaily_usd = 3"), tmp_path / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    with daemon.client() as client:
        argv = [
            sys.executable,
            "-c",
            f"{said(1, 200_000)}\n{wait}\n{said(2, 1000)}\ntime.sleep(60)",
        ]
        run = started(client, argv, meter="claude", limits=[limit("cost", 50)], gateway=False)
        wait_until(
            lambda: info(client, run.id).status is Status.PAUSED, "it has used up its budget"
        )
    daemon.kill()
    daemon.config.write_text(f"[budgets.users.{USER}]\ndaily_usd = 9")
    daemon.restart(PYTHONPATH=slow_prices(tmp_path, "raise OSError(24, 'Too many open files')"))
    with daemon.client() as client:
        assert info(client, run.id).status is Status.RUNNING
        go.touch()
        wait_until(lambda: info(client, run.id).usage.messages == 2, "the second call is read")
        usage = info(client, run.id).usage
        assert (usage.cost_usd, usage.unpriced_tokens) == (3.0075, 1100)
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        stopped(client, run.id)
        over = ended(client, run.id)
    assert (over.usage.cost_usd, over.usage.unpriced_tokens) == (3.03, None)
    wait_until(lambda: abs(charged(daemon) - 3.03) < 1e-9, "the budget was charged once")


def test_a_retry_keeps_the_cost_of_the_attempt_before(start: Start) -> None:
    """An attempt that died before it could tell its cost is priced; that the next one tells its own
    changes nothing about it."""
    daemon = start(config=f"[budgets.users.{USER}]\ndaily_usd = 50")
    usage = {"input_tokens": 200_000, "output_tokens": 100}
    message = claude(
        type="assistant",
        session_id="s",
        message={"id": "m", "model": MODEL, "content": [], "usage": usage},
    )
    result = claude(
        type="result",
        subtype="success",
        is_error=False,
        session_id="t",
        total_cost_usd=0.01,
        usage={"input_tokens": 1},
    )
    program = (
        f"import os, sys\nif os.environ['SFA_ATTEMPT'] == '1':\n    {message}\n "
        f"   sys.exit(1)\n{result}"
    )
    with daemon.client() as client:
        known = sleeper(client)
        # the price list is there from now on: so short a run would be over before
        reserve(client, known.id, 1, 1)
        stopped(client, known.id)
        run = started(
            client, [sys.executable, "-c", program], meter="claude", attempts=2, retry_delay=0.01,
            limits=[limit("cost", 50)], gateway=False,
        )  # fmt: skip
        over = ended(client, run.id)
    assert (over.status, over.attempts) == (Status.COMPLETED, 2)
    assert (state(over, "cost")[0] or 0) >= 3
    wait_until(lambda: charged(daemon) >= 3, "the budget is charged")


USES = """
import time
for _ in range(2000):
    print('{"type": "usage", "model": "%s", "input_tokens": 1000}', flush=True)
    time.sleep(0.005)
"""


@variant
def test_a_reload_does_not_lower_the_cost_of_earlier_use(start: Start) -> None:
    """A stream's sum is priced as a whole: at other prices all that was ever used would cost
    something else."""
    daemon = start(config=f"[budgets.users.{USER}]\ndaily_usd = 5000")
    with daemon.client() as client:
        run = started(
            client,
            [sys.executable, "-c", USES % MODEL],
            meter="jsonl",
            limits=[limit("cost", 100, "warn")],
        )
        wait_until(lambda: (info(client, run.id).usage.cost_usd or 0) > 1, "some use")
        cheaper = f'[prices."{MODEL}"]\ninput_mtok = 0.001\noutput_mtok = 0.001\n'
        daemon.config.write_text(cheaper + daemon.config.read_text())
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(lambda: "config reloaded" in daemon.log.read_text(), "the reload")
        used = info(client, run.id).usage.input_tokens or 0
        wait_until(
            lambda: (info(client, run.id).usage.input_tokens or 0) > used + 5000,
            "more use, at whatever price",
        )
        stopped(client, run.id)
        assert (info(client, run.id).usage.cost_usd or 0) > 1
    assert charged(daemon) > 1


def test_a_reload_while_prices_are_loaded_lets_nothing_through(start: Start) -> None:
    """A request that waits for the price list is answered with prices, even if the config is
    reloaded meanwhile."""
    through = []
    for delay in (0.02, 0.04, 0.06):
        daemon = start()
        with daemon.client() as client:
            run = started(client, ["sleep", "60"], limits=[limit("cost", 1)])
            asked = client.send(
                m.Reserve(
                    id=client.next_id(),
                    run=run.id,
                    model=MODEL,
                    input_tokens=10_000_000,
                    max_output_tokens=1,
                )
            )
            # into the import, which takes some 200 ms; nothing tells of its middle
            time.sleep(delay)
            os.kill(daemon.pid, signal.SIGHUP)
            answer = None
            while answer is None:
                answer = next(
                    (each.reply for each in client.arrived() if each.reply.id == asked), None
                )
            assert isinstance(answer, m.Reserved)
            if answer.reservation is not None:
                through.append((delay, answer.cost_usd))
    assert through == []


@variant
def test_prices_are_loaded_after_a_shortage_of_descriptors(tmp_path: Path) -> None:
    """The import of the price list failed for want of a descriptor; it is tried again. A daemon
    that the tests fork has it already."""
    with running(tmp_path, executed=True) as daemon, daemon.client() as client:
        run = started(client, ["sleep", "60"], limits=[limit("cost", 1)])
        wait_until(lambda: info(client, run.id).status is Status.RUNNING, "it runs")
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        with pytest.raises(DaemonError, match="price of the call is not known now") as refused:
            client.call(
                m.Reserve(
                    id=client.next_id(),
                    run=run.id,
                    model=MODEL,
                    input_tokens=1,
                    max_output_tokens=1,
                ),
                m.Reserved,
            )
        assert refused.value.error is ErrorCode.UNAVAILABLE
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        much = m.Reserve(
            id=client.next_id(),
            run=run.id,
            model=MODEL,
            input_tokens=10_000_000,
            max_output_tokens=1,
        )
        assert client.call(much, m.Reserved).refused is not None


@first(1)
@pytest.mark.parametrize("length", ["day", "week", "month"])
def test_a_budget_is_not_renewed_by_daylight_saving_time(
    length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`datetime.now().astimezone()` has a fixed offset, so after the change the same period "began"
    an hour earlier: another key in the ledger, with nothing charged. Of a month's budget up to a
    month is forgiven, twice a year."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        before = datetime(2026, 3, 29, 0, 30, tzinfo=UTC).astimezone()  # the change is at 1:00 UTC
        after = datetime(2026, 3, 29, 2, 30, tzinfo=UTC).astimezone()
        assert period(before, length)[0] == period(after, length)[0]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_budget_that_refused_too_much_still_says_when_it_is_exceeded(start: Start) -> None:
    """One absurd reservation marks the budget `over` with 0 of 5 used ("limit_exceeded … used 0 of
    5"), and when it is really exceeded nobody is told, for the rest of the period."""
    daemon = start(config=f"[budgets.users.{USER}]\ndaily_usd = 5")
    with daemon.client() as client:
        run, _ = watched(client, ["sleep", "60"], limit("cost", 100, "warn"), meter=None)
        absurd = m.Reserve(
            id=client.next_id(),
            run=run.id,
            model=MODEL,
            input_tokens=10_000_000,
            max_output_tokens=1,
        )
        assert client.call(absurd, m.Reserved).refused is not None
        for _ in range(6):
            client.call(m.Report(id=client.next_id(), run=run.id, cost_usd=1), m.RunReply)
        stopped(client, run.id)
        _, events = until_over(client, run.id)
    exceeded = [
        event.used for event in events if (event.type, event.scope) == ("limit_exceeded", "user")
    ]
    assert any((used or 0) >= 5 for used in exceeded), exceeded


def test_trees_are_paused_while_their_users_budget_is_used_up(start: Start, tmp_path: Path) -> None:
    """Also the one that has spent little; not the one that spends nothing. They go on when it is
    raised. Hooks are told."""
    told = tmp_path / "told"
    hook = f"""
[[hooks]]
on = ["alert_*", "run_paused"]
command = ["sh", "-c", 'printf "%s %s\\n" "$SFAD_EVENT_TYPE" "$SFAD_EVENT_SEVERITY" >> {told}']
"""
    daemon = start(config=f"{hook}[budgets.users.{USER}]\ndaily_usd = 1")
    with daemon.client() as client:
        spender, _ = watched(client, ["sleep", "600"], limit("cost", 100), meter=None)
        idle, server = started(client, ["sleep", "600"]), started(client, ["sleep", "600"])
        client.call(m.Report(id=client.next_id(), run=idle.id, cost_usd=0.01), m.RunReply)
        client.call(m.Report(id=client.next_id(), run=spender.id, cost_usd=0.85), m.RunReply)
        wait_until(
            lambda: told.exists() and told.read_text() == "alert_budget medium\n",
            "the hook is told of 80 %",
        )
        client.call(m.Report(id=client.next_id(), run=spender.id, cost_usd=0.64), m.RunReply)
        assert {info(client, run.id).status for run in (spender, idle)} == {Status.PAUSED}
        assert info(client, server.id).status is Status.RUNNING
        expected = [
            "alert_budget high",
            "alert_budget medium",
            "run_paused medium",
            "run_paused medium",
        ]
        wait_until(
            lambda: sorted(told.read_text().splitlines()) == expected,
            "the hook is told of 100 % and of the pauses",
        )
        assert "alert_budget since" in daemon.sfactl("status").stdout
        why = daemon.sfactl("why", idle.id).stdout
        assert f"user {USER} has used 1.50 of 1.00 USD a day; it renews at " in why
        assert "paused (budget)" in daemon.sfactl("list").stdout
        resumed = daemon.sfactl("resume", idle.id)
        assert (resumed.returncode, "stays paused" in resumed.stderr) == (1, True)
        daemon.kill()
        daemon.restart()
    with daemon.client() as client:
        assert {info(client, run.id).status for run in (spender, idle)} == {Status.PAUSED}
        daemon.config.write_text(f"[budgets.users.{USER}]\ndaily_usd = 2")
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(
            lambda: {info(client, run.id).status for run in (spender, idle)} == {Status.RUNNING},
            "they go on",
        )
        stopped(client, spender.id, idle.id, server.id)


def test_a_model_has_a_name_of_bounded_length(daemon: Daemon) -> None:
    """`Reserve.model` is kept in the hold, up to 4 MiB, a thousand times a run: 4 GiB of the daemon
    for any agent."""
    with daemon.client() as client:
        run = started(client, ["sleep", "60"])
        before = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).memory_bytes
        for _ in range(30):
            name = "m" * 3_000_000
            client.send(
                m.Reserve(
                    id=client.next_id(), run=run.id, model=name, input_tokens=1, max_output_tokens=1
                )
            )
        after = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).memory_bytes
        stopped(client, run.id)
    assert after - before < 40 << 20


@pytest.mark.rest("at scale")
def test_an_agent_that_only_talks_does_not_fill_the_ledger(start: Start) -> None:
    """One `meter_gap` each look: 140 events a second of one run that prints long lines, in the
    ledger and in the log."""
    daemon = start()
    lines = """
import os, time
line = b'{"type": "usage", "x": "' + b'y' * 1100000 + b'"}\\n'
end = time.time() + 2
while time.time() < end: os.write(1, line)
"""
    with daemon.client() as client:
        run, _ = watched(client, [sys.executable, "-c", lines], limit("output", 1 << 20))
        _, events = until_over(client, run.id)
    # each time that it has doubled
    assert len([event for event in events if event.type == "meter_gap"]) <= 30


def test_an_unknown_cost_is_not_shown_as_enforced(daemon: Daemon) -> None:
    """`Live._enforcer` asks whether anything is metered, not whether this kind is: no price, no
    word of tokens, and `cost` is "kept by meter and reports"."""
    with daemon.client() as client:
        run = started(
            client, ["sleep", "60"], meter="report", limits=[limit("cost", 1)], gateway=False
        )
        report = m.Report(
            id=client.next_id(),
            run=run.id,
            model="ollama/knows-it",
            input_tokens=10**9,
            output_tokens=1,
        )
        client.call(report, m.RunReply)
        assert state(info(client, run.id), "cost") == (None, "terminate", "nothing")
        stopped(client, run.id)


def test_approving_one_limit_does_not_lift_another(daemon: Daemon) -> None:
    """Two limits are exceeded at the same time. Raising one does not raise the other."""
    uses = """
import time
for _ in range(8):
    print('{"type": "usage", "turns": 2, "cost_usd": 0.3}', flush=True)
    time.sleep(0.1)
"""
    with daemon.client() as client:
        run, _ = watched(
            client,
            [sys.executable, "-c", uses],
            limit("turns", 3, "request_increase"),
            limit("cost", 0.5, "request_increase"),
        )
        asked = until_event(client, "increase_requested")
        assert asked.limit_kind == "turns"
        wait_until(lambda: info(client, run.id).status is Status.PAUSED, "it stands still")
        refused = daemon.sfactl("approve", run.id, "--limit", "turns=100")
        assert (refused.returncode, "limit of cost: name that as well" in refused.stderr) == (
            2,
            True,
        )
        cost = state(info(client, run.id), "cost")
        stopped(client, run.id)
    assert cost[1] == "request_increase"
