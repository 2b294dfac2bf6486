"""The record of calls: each one once, whatever is killed, and what `sfactl calls` makes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sfactl.connecting.connection import Client
from sfad.host.faults import STATUS
from sfad.protocol import messages as m
from sfad.protocol.types import CallInfo, LimitKind
from sfad.storage.ledger.database import open_reader
from sfad.storage.ledger.queries import Reader
from tests.conftest import Start
from tests.harness import PATIENCE, PYTHON, Daemon, ended, spawn, stopped, wait_until
from tests.tiers import variant

from .agents import info, limit
from .provider import Provider
from .test_gateway import AMPLE, calling, config, gateway, held, killed_gateway, passed, results


@pytest.fixture
def gated(start: Start, provider: Provider) -> Daemon:
    """Start a daemon whose gateway leads to the provider."""
    return start(config=config(provider))


def page(client: Client, run: str) -> m.CallPage:
    """Return what the daemon says of the calls of a run."""
    return client.call(m.ListCalls(id=client.next_id(), run=run), m.CallPage)


def recorded(daemon: Daemon, run: str) -> list[CallInfo]:
    """Return the calls that the ledger's file has of a run."""
    with closing(Reader(open_reader(daemon.state_dir))) as reader:
        return reader.calls(run, rows=1000)


# ---- each one once


@variant
@pytest.mark.parametrize(("point", "rows"), [("RecordCall+1", 0), ("RecordCall+3", 1)])
def test_a_daemon_that_dies_beside_the_row_of_a_call_neither_loses_nor_doubles_it(
    gated: Daemon, provider: Provider, tmp_path: Path, point: str, rows: int
) -> None:
    """Before the row is written, or when only the spool does not know that it is. The call was
    settled by then."""
    done = tmp_path / "done"
    with gated.client() as client:
        run = calling(client, *AMPLE, output=10, stall=True, then=str(done)).id
        wait_until(lambda: provider.stalled == 1, "the reply is in its middle")
    gated.kill()
    gated.restart(SFAD_CRASH_AT=point)
    provider.released.set()
    assert gated.process.wait(PATIENCE) == STATUS
    assert len(recorded(gated, run)) == rows
    gated.restart()
    (call,) = recorded(gated, run)
    assert (call.state, call.status, call.output_tokens) == ("ended", 200, 10)
    assert call.cost_usd == pytest.approx(provider.usd)
    done.touch()
    with gated.client() as client:
        assert ended(client, run).usage.cost_usd == pytest.approx(provider.usd)
    assert recorded(gated, run) == [call]


@pytest.mark.rest("kills many times")
def test_calls_are_recorded_once_across_deaths_of_gateway_and_daemon(
    gated: Daemon, provider: Provider, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    with gated.client() as client:
        run = calling(
            client, *AMPLE, threads=10, calls=2, on=True, output=100, stall=True, then=str(done)
        ).id
        wait_until(lambda: provider.stalled == 10, "ten replies are in their middle")
        assert [each.state for each in page(client, run).calls] == ["under_way"] * 10
        passed(gated, provider)
        killed_gateway(gated)
        gated.kill()
        gated.restart()
    provider.released.set()
    wait_until(lambda: len(results(gated, run)) == 20, "all calls have ended")
    with gated.client() as client:
        gated.reexecute()
        wait_until(
            lambda: [each.state for each in page(client, run).calls] == ["ended"] * 20,
            "all are recorded",
        )
        done.touch()
        over = ended(client, run)
        assert info(client, run).calls == 20
    calls = recorded(gated, run)
    assert len(calls) == 20
    assert sum(each.cost_usd or 0 for each in calls) == pytest.approx(over.usage.cost_usd)
    assert (
        sorted(each.error or "" for each in calls)[10:]
        == ["the gateway was killed before it ended; it was charged for what had passed"] * 10
    )
    assert sum(each.partial for each in calls) == 10


def test_a_held_call_is_shown_and_recorded_once(gated: Daemon, tmp_path: Path) -> None:
    with gated.client() as client:
        run = calling(client, limit("cost", 0.05, "pause"), then=str(tmp_path / "done")).id
        held(client, run)
        watch = m.Watch(id=client.next_id(), run=run, calls=True)
        client.call(watch, m.Done)
        gated.reexecute()
        wait_until(
            lambda: [each.state for each in page(client, run).calls] == ["waiting"], "it asks again"
        )
        client.call(m.Resume(id=client.next_id(), run=run, limits=[limit("cost", 1)]), m.RunReply)
        wait_until(
            lambda: [each.state for each in page(client, run).calls] == ["ended"], "it is made"
        )
        (call,) = page(client, run).calls
        assert call.waited_s is not None
        assert [
            answer.reply.call.state
            for answer in client.arrived()
            if isinstance(answer.reply, m.CallPush)
        ] == [
            "waiting",
            "ended",
        ]
        (tmp_path / "done").touch()
        ended(client, run)
    assert [each.state for each in recorded(gated, run)] == ["ended"]


@variant
def test_what_a_call_under_way_reserves_is_not_shown_as_used(gated: Daemon) -> None:
    daemon = gated
    with daemon.client() as client:
        run = calling(client, limit("cost", 1), limit("tokens", 100_000), stall=True).id
        wait_until(
            lambda: any(state.reserved for state in info(client, run).limits), "a call is under way"
        )
        found = {state.kind: state for state in info(client, run).limits}
        for kind in (LimitKind.COST, LimitKind.TOKENS):
            assert found[kind].used == 0
            assert (found[kind].reserved or 0) > 0
        assert "more reserved" in daemon.sfactl("info", run).stdout
        assert "near its limit" not in daemon.sfactl("why", run).stdout
        stopped(client, run)


def test_calls_that_are_refused_again_and_again_fill_no_disk(gated: Daemon) -> None:
    with gated.client() as client:
        run = calling(client, limit("cost", 0.01, "refuse"), calls=50, on=True).id
        ended(client, run)
        found = info(client, run)
    rows = recorded(gated, run)
    assert (len(rows), found.calls, found.calls_refused) == (10, 0, 50)
    assert (rows[-1].more, rows[0].more) == (40, 0)
    assert "above its cost limit" in (rows[0].refused or "")
    assert found.last_refusal == rows[-1].refused
    assert (
        f"50 calls of its model were refused, the last one: {found.last_refusal}"[:-1]
        in gated.sfactl("why", found.id).stdout
    )


UNASKED = """
import http.client, os, sys
from urllib.parse import urlsplit
url = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
connection = http.client.HTTPConnection(url.netloc, timeout=60)
asked = '{"max_tokens": 1, "metadata": {"stall": false}}'
connection.request("POST", url.path + "/v1/messages/batches", asked)
print(connection.getresponse().read())
"""


def test_other_requests_that_cost_money_are_recorded_without_a_price(
    start: Start, provider: Provider
) -> None:
    daemon = start(config=config(provider))
    for ungated, state in ((False, "refused"), (True, "ended")):
        daemon.config.write_text(
            config(provider).replace(
                "[gateway]\n", f"[gateway]\nungated = {str(ungated).lower()}\n"
            )
        )
        assert daemon.sfactl("reload").returncode == 0
        with daemon.client() as client:

            def called() -> CallInfo:
                reply = spawn(client, [sys.executable, "-c", UNASKED])
                assert isinstance(reply, m.RunReply)
                ended(client, reply.run.id)
                wait_until(lambda: recorded(daemon, reply.run.id), "it is recorded")
                (call,) = recorded(daemon, reply.run.id)
                return call

            wait_until(lambda: called().state == state, "the gateway knows the config")  # noqa: B023
            call = called()
        assert (call.model, call.path, call.upstream, call.cost_usd) == (
            None,
            "/v1/messages/batches",
            "anthropic",
            None,
        )
        assert (call.status, "ungated" in (call.refused or "")) == (
            (200, False) if ungated else (None, True)
        )


def test_what_a_run_asked_for_is_recorded_after_it_has_ended(
    start: Start, provider: Provider, tmp_path: Path
) -> None:
    daemon = start(config=config(provider).replace("[gateway]\n", "[gateway]\nungated = true\n"))
    leaving = UNASKED.replace("false}", "true}").replace(
        "print(connection.getresponse().read())", "open(sys.argv[1]).read()"
    )
    os.mkfifo(tmp_path / "leave")
    with daemon.client() as client:
        pid, _ = gateway(daemon)
        reply = spawn(client, [sys.executable, "-c", leaving, str(tmp_path / "leave")])
        assert isinstance(reply, m.RunReply)
        wait_until(lambda: provider.stalled == 1, "it is at the provider")
        os.kill(pid, signal.SIGSTOP)
        try:
            (tmp_path / "leave").write_text("")
            ended(client, reply.run.id)
        finally:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: recorded(daemon, reply.run.id), "it is recorded")
    (call,) = recorded(daemon, reply.run.id)
    assert (call.path, call.state) == ("/v1/messages/batches", "ended")


# ---- the verb


def test_calls_are_printed_and_followed(gated: Daemon, provider: Provider) -> None:
    with gated.client() as client:
        first = calling(client, limit("cost", 0.5, "refuse"), calls=4).id
        ended(client, first)
        none = calling(client, gateway=False).id
        parent = calling(client, limit("cost", 5), children=1, output=100, stall=True).id
        wait_until(lambda: provider.stalled == 1, "a reply is in its middle")
        child = next(
            run.id
            for run in client.call(m.List(id=client.next_id(), root=parent), m.RunList).runs
            if run.id != parent
        )
        table = gated.sfactl("calls", first)
        assert [line.split()[1] for line in table.stdout.splitlines()] == ["MODEL"] + 3 * [
            "claude-sonnet-4-5"
        ]
        assert "lowered to" in table.stdout
        assert "refused: not reserved" in table.stdout
        told = [
            json.loads(line)
            for line in gated.sfactl("calls", "--json", first, child).stdout.splitlines()
        ]
        assert [(each["run_id"], each["state"]) for each in told] == [
            (first, "ended"), (first, "ended"), (first, "refused"), (child, "under_way"),
        ]  # fmt: skip
        assert sum(each["cost_usd"] or 0 for each in told) == pytest.approx(
            info(client, first).usage.cost_usd
        )
        refused = gated.sfactl("calls", "--refused", "--json", first)
        assert [json.loads(line) for line in refused.stdout.splitlines()] == told[2:3]
        empty = gated.sfactl("calls", none)
        assert (empty.returncode, empty.stdout) == (0, "")
        assert "the gateway was not used" in empty.stderr
        assert "no call was made" in gated.sfactl("calls", parent).stderr
        assert gated.sfactl("calls", "zzz", first).returncode == 66
        words = [sys.executable, "-m", "sfactl", "calls", "-f", "--json"]
        with (
            subprocess.Popen(
                [*words, child], stdout=subprocess.PIPE, env=gated.env, text=True
            ) as one,
            subprocess.Popen(
                [*words, "--tree", parent], stdout=subprocess.PIPE, env=gated.env, text=True
            ) as tree,
        ):
            assert one.stdout is not None
            assert tree.stdout is not None
            for stream in (one.stdout, tree.stdout):
                assert json.loads(stream.readline())["state"] == "under_way"
            gated.reexecute()
            provider.released.set()
            for stream in (one.stdout, tree.stdout):
                (last,) = map(json.loads, stream)
                assert (last["run_id"], last["state"], last["status"], last["output_tokens"]) == (
                    child,
                    "ended",
                    200,
                    100,
                )
        assert (one.returncode, tree.returncode) == (0, 0)


def test_an_agent_sees_the_calls_of_its_own_subtree_only(gated: Daemon) -> None:
    with gated.client() as client:
        other = calling(client, output=10).id
        ended(client, other)
        script = (
            f"{PYTHON} -m sfactl calls {other}; echo $?; "
            f"{PYTHON} -m sfactl calls --json $SFA_RUN_ID; echo $?"
        )
        reply = spawn(client, ["sh", "-c", script])
        assert isinstance(reply, m.RunReply)
        ended(client, reply.run.id)
    assert gated.output(reply.run.id) == "77\n0\n"
