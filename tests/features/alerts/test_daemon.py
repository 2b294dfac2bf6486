"""Alerts of a real daemon: shown while they are raised, and neither repeated nor forgotten by the
next one."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import Action, Event, Limit, LimitKind
from tests.conftest import Start
from tests.harness import PATIENCE, Daemon, ended, started, stopped

CONFIG = "[quotas]\nspawns_per_hour = 100000\n[alerts]\ncost_usd = 1.0\nlimit_share = 0.5\n"


def alerts(client: Client) -> list[Event]:
    return client.call(m.Events(id=0, after=0, rows=1000, types=["alert_*"]), m.EventPage).events


def raised(client: Client) -> list[str]:
    return sorted(
        f"{alert.type} {alert.run_id}"
        for alert in client.call(m.DaemonInfo(id=0), m.DaemonStatus).alerts
    )


def told(client: Client) -> list[str]:
    return sorted(f"{event.state} {event.type} {event.run_id}" for event in alerts(client))


def report(client: Client, run: str) -> None:
    client.call(m.Report(id=client.next_id(), run=run, turns=6, cost_usd=2.0), m.RunReply)


def restarted(daemon: Daemon, *, killed: bool) -> None:
    if killed:
        daemon.kill()
        daemon.restart()
    else:
        daemon.reexecute()


def test_an_alert_is_raised_once_whatever_becomes_of_the_daemon(start: Start) -> None:
    daemon = start(config=CONFIG)
    with daemon.client() as client:
        run = started(client, ["sleep", "1000"], name="spender", limits=[], on_limit="warn").id
        report(client, run)
        before = raised(client)
        assert before == ["alert_cost None", f"alert_limit {run}"]
        assert {event.severity for event in alerts(client)} == {"high"}
    assert "alert_cost since" in daemon.sfactl("status").stdout
    listed = daemon.sfactl("list", "--wide").stdout
    assert "ALERTS" in listed.splitlines()[0]
    for killed in (True, False):
        restarted(daemon, killed=killed)
        with daemon.client() as client:
            assert raised(client) == before
            assert told(client) == ["raised alert_cost None", f"raised alert_limit {run}"]
    with daemon.client() as client:
        inside = started(client, ["sh", "-c", "exit 0"], name="other").id
        ended(client, inside)
        stopped(client, run, signal=signal.SIGKILL)
        ended(client, run)
        assert raised(client) == ["alert_cost None"]
        assert told(client) == [
            "cleared alert_limit " + run,
            "raised alert_cost None",
            "raised alert_limit " + run,
        ]


def test_a_config_that_says_nothing_of_alerts(start: Start) -> None:
    """The module behind them is loaded when a run has used something, or by the next daemon."""
    daemon = start()
    with daemon.client() as client:
        turns = Limit(kind=LimitKind.TURNS, threshold=7, action=Action.WARN)
        run = started(client, ["sleep", "1000"], limits=[turns], on_limit="warn").id
        assert raised(client) == []
        report(client, run)
        assert raised(client) == [f"alert_limit {run}"]
        (listed,) = client.call(m.List(id=0), m.RunList).runs
        assert [alert.type for alert in listed.alerts] == ["alert_limit"]
        cost = client.call(m.DaemonInfo(id=0), m.DaemonStatus).cost_usd
        assert cost == 2.0
    restarted(daemon, killed=True)
    with daemon.client() as client:
        (listed,) = client.call(m.List(id=0), m.RunList).runs
        assert [alert.type for alert in listed.alerts] == ["alert_limit"]
        status = client.call(m.DaemonInfo(id=0), m.DaemonStatus)
        assert (status.cost_usd, status.window_s, status.limit_share) == (2.0, 3600.0, 0.8)
        stopped(client, run, signal=signal.SIGKILL)


def test_alerts_are_counted_for_the_service_manager(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        daemon = start(config=CONFIG)
        with daemon.client() as client:
            run = started(client, ["sleep", "1000"], name="spender", limits=[], on_limit="warn").id
            report(client, run)
            while manager.recv(4096) != b"STATUS=1 run live, 0 queued; 2 alerts":
                pass
            stopped(client, run, signal=signal.SIGKILL)
            ended(client, run)
            while manager.recv(4096) != b"STATUS=0 runs live, 0 queued; 1 alert":
                pass
