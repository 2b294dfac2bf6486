"""The gateway between real processes: what it bounds, whom it serves, and what outlives which
crash."""

from __future__ import annotations

import getpass
import http.client
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from sfactl.connecting.connection import Client
from sfad.features.gateway.program.call_journal import noted_in
from sfad.processes.contain.cgroup import cgroupfs
from sfad.protocol import messages as m
from sfad.protocol.types import Limit, Repetition, RunInfo, Status
from tests.conftest import Start
from tests.harness import (
    GONE,
    Daemon,
    alive,
    as_nobody,
    as_root,
    ended,
    environment,
    spawn,
    stopped,
    wait_until,
)
from tests.tiers import first, sampled, variant

from .agents import info, limit
from .provider import Provider, providing

CALLER = str(Path(__file__).with_name("caller.py"))
ACTIONS = ("terminate", "refuse", "pause", "request_increase")
CONFIG = """
[gateway]
enabled = {enabled}
[gateway.upstreams.anthropic]
url = "{url}"
api = "anthropic"
[quotas]
spawns_per_hour = 100000
[stop]
grace = 0.2
"""


@pytest.fixture
def gated(start: Start, provider: Provider) -> Daemon:
    """Start a daemon whose gateway leads to the provider."""
    return start(config=config(provider))


@pytest.fixture
def serving(share: Start, provider: Provider) -> Daemon:
    """A daemon whose gateway leads to the provider, which may have served other tests."""
    return share(config=config(provider))


def config(provider: Provider, *, enabled: bool = True) -> str:
    """Return the config of a daemon with a gateway."""
    return CONFIG.format(url=provider.url, enabled=str(enabled).lower())


def calling(
    client: Client,
    *limits: Limit,
    url: str | None = None,
    gateway: bool | None = None,
    env: Sequence[bytes] = (),
    models: Sequence[str] = (),
    **plan: Any,
) -> RunInfo:
    """Start a run that calls the model. `url`: what its client's environment says, and `env` more
    of it; `models`: it may call."""
    own = environment()
    own += [f"ANTHROPIC_BASE_URL={url}".encode()] if url is not None else []
    words = [sys.executable, CALLER, json.dumps(plan)]
    reply = spawn(
        client,
        words,
        limits=list(limits),
        gateway=gateway,
        env=[*own, *env],
        allowed_models=list(models),
    )
    assert isinstance(reply, m.RunReply), reply
    return reply.run


def results(daemon: Daemon, run: str) -> list[dict[str, Any]]:
    """Return what a run has printed of its calls."""
    lines = daemon.output(run).splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def gateway(daemon: Daemon) -> tuple[int, int]:
    """Return the gateway's pid and port. The daemon serves a moment before its gateway starts: the
    pid is 0 until then."""

    def record() -> dict[str, int]:
        found: dict[str, int] = json.loads((daemon.state_dir / "gateway.json").read_text())
        return found if found["pid"] else {}

    found = wait_until(record, "there is a gateway")
    return found["pid"], found["port"]


def killed_gateway(daemon: Daemon) -> None:
    """Kill the gateway with SIGKILL, and wait until another one is there, on the same port. No
    connection is refused meanwhile."""
    before, port = gateway(daemon)
    os.kill(before, signal.SIGKILL)

    def another() -> bool:
        socket.create_connection(("127.0.0.1", port)).close()
        return gateway(daemon)[0] != before

    wait_until(another, "another gateway is started")
    assert gateway(daemon)[1] == port


def held(client: Client, run: str) -> RunInfo:
    """Return the run once a limit holds its calls."""
    wait_until(lambda: info(client, run).status is Status.PAUSED, "it is paused")
    return info(client, run)


def post(port: int, path: str = "/anthropic/v1/messages") -> int:
    """Return how the gateway answers a call of this process."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(
            "POST",
            path,
            json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 5, "messages": []}),
        )
        return connection.getresponse().status
    finally:
        connection.close()


def answers(port: int) -> bool:
    """Return whether the gateway answers."""
    try:
        return bool(post(port))
    except OSError:
        return False


# ---- what it bounds

SHAPES: dict[str, dict[str, Any]] = {
    "one agent": {"calls": 10},
    "children": {"children": 10, "calls": 2},
    "threads": {"threads": 10, "calls": 2},
    "retries": {"calls": 10, "tries": 5},
}


@first(1)
@pytest.mark.parametrize("shape", [*SHAPES])
@pytest.mark.parametrize("action", ACTIONS)
def test_the_bill_never_exceeds_a_limit_and_most_of_it_can_be_used(
    share: Start, provider: Provider, action: str, shape: str
) -> None:
    provider.overloaded = 4 if shape == "retries" else 0
    daemon = share(config=config(provider), mode="tags" if shape == "threads" else "auto")
    with daemon.client() as client:
        run = calling(client, limit("cost", 0.5, action), **SHAPES[shape])
        if action in {"terminate", "refuse"}:
            over = ended(client, run.id)
            assert over.status is Status.FAILED
            assert over.total_cost_usd == pytest.approx(provider.usd)
        else:
            held(client, run.id)
            wait_until(lambda: provider.under_way == 0, "no call is under way")
            stopped(client, run.id)
    # a limit that holds calls lowers none to less than 1.5 times the longest reply
    least = (
        0.8 * 0.5
        if action in {"terminate", "refuse"}
        else 0.5 - 1.5 * max(bill.usd for bill in provider.bills)
    )
    assert least <= provider.usd <= 0.5


ERROR = 0.02
"""The part of a limit that the error of an input estimate may exceed it by."""


@pytest.mark.parametrize("bytes_a_token", sampled([5.0, 2.0, 1.2]))
def test_an_input_that_is_larger_than_estimated_exceeds_no_limit(
    gated: Daemon, provider: Provider, bytes_a_token: float
) -> None:
    provider.bytes_a_token = bytes_a_token
    with gated.client() as client:
        run = calling(client, limit("cost", 1, "refuse"), calls=30, output=5000, padding=60_000)
        ended(client, run.id)
    assert 0.8 <= provider.usd <= 1 + ERROR


@variant
@pytest.mark.parametrize("bytes_a_token", sampled([5.0, 2.0, 1.2]))
def test_the_errors_of_parallel_calls_do_not_add_up(
    gated: Daemon, provider: Provider, bytes_a_token: float
) -> None:
    """Where nothing is known of them yet, most wait for the first."""
    provider.bytes_a_token = bytes_a_token
    with gated.client() as client:
        run = calling(
            client, limit("cost", 0.5, "refuse"), threads=15, output=100, padding=60_000, stall=True
        )
        wait_until(lambda: provider.stalled == 2, "as many calls as fit are under way")
        provider.released.set()
        ended(client, run.id)
    assert 0.8 * 0.5 <= provider.usd <= 0.5 * (1 + ERROR)


def test_a_name_without_a_price_costs_what_its_reply_tells(
    gated: Daemon, provider: Provider
) -> None:
    with gated.client() as client:
        run = calling(client, limit("cost", 5.0), output=100, model="our-model")
        assert ended(client, run.id).total_cost_usd == pytest.approx(provider.usd)
    told = gated.sfactl("events", "--run", run.id).stdout
    assert "no price is known of our-model: unless its reply tells a price" in told


def test_a_large_first_input_cuts_no_reply_that_fits(serving: Daemon, provider: Provider) -> None:
    """As of Claude Code, whose first request has 115 kB."""
    with serving.client() as client:
        run = calling(client, limit("cost", 0.5), output=24_000, padding=115_000)
        assert ended(client, run.id).status is Status.COMPLETED
    assert provider.usd == pytest.approx(24_000 * 15e-6 + provider.bills[0].input * 3e-6)


def test_a_reply_that_a_limit_cuts_is_told_of_everywhere(
    serving: Daemon, provider: Provider, tmp_path: Path
) -> None:
    """An agent in a terminal stays there, with an unfinished answer."""
    with serving.client() as client:
        run = calling(client, limit("cost", 0.1), does="cuts", then=str(tmp_path / "done"))
        wait_until(lambda: info(client, run.id).cut is not None, "its reply was cut")
        tokens = provider.bills[0].output
        words = f"its last reply was cut at {tokens:,} tokens".replace(",", " ")
        live = info(client, run.id)
        assert (live.status, live.cut) == (Status.RUNNING, live.cut)
        for told in (
            live.cut or "",
            serving.sfactl("info", run.id).stdout,
            serving.sfactl("why", run.id).stdout,
            serving.sfactl("events", "--run", run.id).stdout,
            serving.log.read_text(),
        ):
            assert words in told
            assert "its cost limit is 0.10" in told
            assert "the next call ends the run" in told
        (tmp_path / "done").touch()
        over = ended(client, run.id)
    assert over.status is Status.FAILED
    assert over.cut is None
    assert over.reason is not None
    assert over.reason.message.startswith(words)


def test_parallel_calls_and_rates_are_bounded(start: Start, provider: Provider) -> None:
    bounds = (
        "wait = '1s'\n[gateway.per_run]\nconcurrent_calls = "
        "3\n[gateway.per_user]\ncalls_per_minute = 7\n"
    )
    daemon = start(config=config(provider).replace("[gateway.up", f"{bounds}[gateway.up"))
    with daemon.client() as client:
        run = calling(client, limit("cost", 5), threads=5, output=10, stall=True, on=True)
        wait_until(lambda: len(results(daemon, run.id)) == 2, "two have waited for long enough")
        assert [each["status"] for each in results(daemon, run.id)] == [429, 429]
        assert (provider.stalled, provider.under_way) == (3, 3)
        provider.released.set()
        ended(client, run.id)
        run = calling(client, calls=6, output=10, on=True)
        ended(client, run.id)
    assert [each["status"] for each in results(daemon, run.id)] == [200, 200, 200, 200, 429, 429]


def test_a_model_that_repeats_a_tool_call_is_told_of(gated: Daemon, tmp_path: Path) -> None:
    done = tmp_path / "done"
    with gated.client() as client:
        run = calling(client, limit("turns", 50), calls=11, output=10, tool="Bash", then=str(done))
        wait_until(lambda: info(client, run.id).usage.turns == 11, "it has made its calls")
        words = "its model asked for the tool 'Bash' with the same arguments 11 times in a row"
        assert words in gated.sfactl("why", run.id).stdout
        assert words in gated.sfactl("info", run.id).stdout
        gated.kill()
        gated.restart()
    with gated.client() as client:
        assert info(client, run.id).repeating == Repetition(tool="Bash", count=11)
        done.touch()
        assert ended(client, run.id).repeating is None
    assert gated.log.read_text().count("run_repeating") == 1


def test_a_run_and_its_children_call_no_other_model(serving: Daemon, provider: Provider) -> None:
    with serving.client() as client:
        run = calling(client, output=10, children=1, models=["claude-haiku-*"])
        assert ended(client, run.id).status is Status.FAILED
        found = client.call(m.List(id=client.next_id(), root=run.id), m.RunList).runs
        child = next(each for each in found if each.parent_id == run.id)
    words = f"is not one of claude-haiku-* (--model-allow of run {run.id})"
    assert [words in each["said"] for each in results(serving, child.id)] == [True]
    assert provider.bills == []
    done = serving.sfactl(
        "run",
        "--model-allow",
        "claude-*",
        "--",
        sys.executable,
        "-m",
        "sfactl",
        "run",
        "--no-gateway",
        "true",
    )
    assert (done.returncode, "leave out --no-gateway" in done.stderr) == (2, True), done.stderr


# ---- crashes

MANY: dict[str, Any] = {"threads": 50, "output": 1000, "stall": True}
AMPLE = (limit("cost", 50), limit("turns", 100))


def passed(daemon: Daemon, provider: Provider) -> float:
    """Return what the replies that stand in their middle have cost, once the gateway has noted
    that."""
    with provider.lock:
        output, usd = (
            sum(bill.output for bill in provider.bills),
            sum(bill.usd for bill in provider.bills),
        )
    noted = daemon.state_dir / "gateway.calls"
    wait_until(
        lambda: (
            sum(call.tokens.output for call in noted_in(noted).calls if call.tokens is not None)
            == output
        ),
        "all is noted",
    )
    return usd


def test_a_killed_gateway_is_back_at_once_and_loses_no_money(
    start: Start, provider: Provider, tmp_path: Path, containment: str
) -> None:
    daemon = start(config=config(provider), mode=containment)
    done = tmp_path / "done"
    with daemon.client() as client:
        run = calling(client, *AMPLE, calls=2, on=True, then=str(done), **MANY)
        wait_until(lambda: provider.stalled == 50, "fifty replies are in their middle")
        cut = len(provider.bills)
        cost = passed(daemon, provider)
        killed_gateway(daemon)
        provider.released.set()
        wait_until(lambda: len(results(daemon, run.id)) == 100, "all calls have ended")
        assert [each["whole"] for each in results(daemon, run.id)].count(True) == 50
        assert [
            each for each in results(daemon, run.id) if not each["whole"] and each["error"] is None
        ] == []
        expected = pytest.approx(cost + sum(bill.usd for bill in provider.bills[cut:]))
        wait_until(lambda: info(client, run.id).total_cost_usd == expected, "all calls are settled")
        done.touch()
        assert ended(client, run.id).total_cost_usd == expected


@variant
@pytest.mark.parametrize("also", [[], ["daemon"]], ids=["gateway", "gateway-and-daemon"])
def test_a_call_of_whose_admission_the_killed_gateway_had_not_heard_costs_nothing(
    start: Start, provider: Provider, tmp_path: Path, also: list[str]
) -> None:
    daemon = start(config=config(provider))
    done = tmp_path / "done"
    with daemon.client() as client:
        run = calling(client, limit("cost", 0.05, "pause"), threads=1, then=str(done))
        wait_until(lambda: info(client, run.id).status is Status.PAUSED, "its call is held")
        pid, _ = gateway(daemon)
        os.kill(pid, signal.SIGSTOP)
        assert daemon.sfactl("resume", run.id, "--limit", "cost=9").returncode == 0
        asked = m.ListCalls(id=client.next_id(), run=run.id)
        states = [each.state for each in client.call(asked, m.CallPage).calls]
        assert states[-1:] == ["under_way"], states
    if also:
        # not the gateway's death after the daemon's: an orphaned process group that stands still is
        # continued by the kernel, and the call would be sent after all
        os.kill(daemon.pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    if also:
        daemon.kill()
        daemon.restart()
    wait_until(lambda: len(results(daemon, run.id)) == 1, "the call has broken off")
    done.touch()
    with daemon.client() as client:
        assert not ended(client, run.id).total_cost_usd
        asked = m.ListCalls(id=client.next_id(), run=run.id)
        call = client.call(asked, m.CallPage).calls[-1]
    assert (call.state, call.cost_usd or 0) == ("ended", 0)
    assert call.error == "the gateway was killed before it was sent; it costs nothing"
    assert provider.bills == []


@variant
def test_daemon_and_gateway_are_killed_together(
    gated: Daemon, provider: Provider, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    with gated.client() as client:
        run = calling(client, *AMPLE, then=str(done), **MANY)
        wait_until(lambda: provider.stalled == 50, "fifty replies are in their middle")
    cost = passed(gated, provider)
    pid, port = gateway(gated)
    gated.kill()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(results(gated, run.id)) == 50, "all calls have broken off")
    assert [each for each in results(gated, run.id) if each["whole"] or each["error"] is None] == []
    provider.released.set()
    gated.restart()
    with gated.client() as client:
        assert gateway(gated)[1] == port
        wait_until(
            lambda: info(client, run.id).total_cost_usd == pytest.approx(cost), "all are charged"
        )
        assert ended(client, calling(client, output=10).id).status is Status.COMPLETED
        done.touch()
        assert ended(client, run.id).total_cost_usd == pytest.approx(cost)


@first(1)
@pytest.mark.parametrize("also", [[], ["gateway"]], ids=["run", "run-and-gateway"])
def test_a_run_that_dies_with_its_daemon_is_charged_for_what_had_passed(
    start: Start, provider: Provider, also: list[str], containment: str
) -> None:
    budget = f"[budgets.users.{getpass.getuser()}]\ndaily_usd = 90\n"
    daemon = start(config=config(provider) + budget, mode=containment)
    with daemon.client() as client:
        run = calling(client, *AMPLE, **MANY)
        wait_until(lambda: provider.stalled == 50, "fifty replies are in their middle")
        pid = info(client, run.id).pid
        assert pid is not None
    cost = pytest.approx(passed(daemon, provider))
    gateway_pid, port = gateway(daemon)
    daemon.kill()
    os.kill(pid, signal.SIGKILL)
    if also:
        os.kill(gateway_pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), "the run is dead")
    daemon.restart()
    provider.released.set()
    with daemon.client() as client:
        over = ended(client, run.id)
        (used,) = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).budgets
        assert [over.total_cost_usd, used.used_usd] == [cost, cost]
        assert (used.partial, used.at_most) == (True, False)
        assert (over.usage.partial, over.usage.at_most) == (True, False)
        asked = m.ListCalls(id=client.next_id(), run=run.id)
        found = client.call(asked, m.CallPage).calls
        assert len(found) == 50
        assert sum(each.cost_usd or 0 for each in found) == cost
        assert {(each.state, each.partial, each.at_most) for each in found} == {
            ("ended", True, False)
        }
        assert ended(client, calling(client, output=10).id).status is Status.COMPLETED
    assert gateway(daemon)[1] == port


@variant
def test_a_run_that_ends_once_its_daemon_is_back_is_charged_for_what_had_passed(
    start: Start, provider: Provider
) -> None:
    daemon = start(config=config(provider).replace("enabled = true", ""))
    with daemon.client() as client:
        run = calling(client, *AMPLE, **MANY)
        wait_until(lambda: provider.stalled == 50, "fifty replies are in their middle")
        pid = info(client, run.id).pid
        assert pid is not None
    cost = passed(daemon, provider)
    gateway_pid, _ = gateway(daemon)
    daemon.kill()
    os.kill(pid, signal.SIGSTOP)
    os.kill(gateway_pid, signal.SIGKILL)
    daemon.restart()
    provider.released.set()
    with daemon.client() as client:
        # without a cgroup the next daemon has continued it
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        over = ended(client, run.id)
    assert over.total_cost_usd == pytest.approx(cost)
    assert (over.usage.partial, over.usage.at_most) == (True, False)


@first(1)
@pytest.mark.parametrize("how", ["killed", "re-executed"])
def test_streams_outlive_their_daemon_and_are_charged_once(
    serving: Daemon, provider: Provider, tmp_path: Path, how: str
) -> None:
    done = tmp_path / "done"
    with serving.client() as client:
        run = calling(client, *AMPLE, then=str(done), **MANY)
        wait_until(lambda: provider.stalled == 50, "fifty replies are in their middle")
    before = gateway(serving)
    if how == "killed":
        serving.kill()
        provider.released.set()
        wait_until(lambda: len(results(serving, run.id)) == 50, "all calls have ended")
        serving.restart()
    else:
        serving.reexecute()
        provider.released.set()
        wait_until(lambda: len(results(serving, run.id)) == 50, "all calls have ended")
    assert all(each["whole"] for each in results(serving, run.id))
    with serving.client() as client:
        wait_until(
            lambda: info(client, run.id).total_cost_usd == pytest.approx(provider.usd),
            "all calls are settled",
        )
        assert gateway(serving) == before
        assert info(client, run.id).usage.messages == 50
        done.touch()
        over = ended(client, run.id)
    assert over.total_cost_usd == pytest.approx(provider.usd)
    assert not over.usage.partial
    killed_gateway(serving)


@variant
def test_a_held_call_outlives_its_daemon(serving: Daemon, provider: Provider) -> None:
    with serving.client() as client:
        run = calling(client, limit("cost", 0.05, "pause"))
        held(client, run.id)
    serving.kill()
    serving.restart()
    with serving.client() as client:
        serving.reexecute()
        held(client, run.id)
        client.call(
            m.Resume(id=client.next_id(), run=run.id, limits=[limit("cost", 1)]), m.RunReply
        )
        assert ended(client, run.id).status is Status.COMPLETED
        assert ended(client, run.id).total_cost_usd == pytest.approx(provider.usd)


@variant
def test_a_held_call_of_a_killed_gateway_reserves_nothing(
    serving: Daemon, provider: Provider, tmp_path: Path
) -> None:
    with serving.client() as client:
        run = calling(client, limit("cost", 0.05, "pause"), then=str(tmp_path / "done"))
        held(client, run.id)
        killed_gateway(serving)
        wait_until(lambda: results(serving, run.id), "the call has failed")
        client.call(
            m.Resume(id=client.next_id(), run=run.id, limits=[limit("cost", 1)]), m.RunReply
        )
        (tmp_path / "done").touch()
        assert not ended(client, run.id).total_cost_usd
    assert provider.bills == []


@variant
@pytest.mark.parametrize("sent", [True, False], ids=["sent", "not sent"])
def test_a_call_whose_reply_has_not_begun_when_its_gateway_is_killed(
    start: Start, provider: Provider, tmp_path: Path, sent: bool
) -> None:
    """What was sent is charged as reserved, and shown as an upper bound. What was not costs
    nothing: there is no connection to the provider yet."""
    with socket.create_server(("127.0.0.1", 0)) as mute, ExitStack() as stack:
        url = provider.url if sent else f"https://127.0.0.1:{mute.getsockname()[1]}"
        upstream = f'url = "{url}"\nfree = false\n'  # it is not asked whether it is a local model
        daemon = start(config=config(provider).replace(f'url = "{provider.url}"\n', upstream))
        with daemon.client() as client:
            run = calling(client, *AMPLE, does="hang", output=1000, then=str(tmp_path / "done")).id
            if sent:
                wait_until(lambda: provider.stalled == 1, "the provider has the call")
            else:
                connection = stack.enter_context(mute.accept()[0])
                assert connection.recv(1) == b"\x16", "it is in the middle of the TLS handshake"
            killed_gateway(daemon)
            wait_until(lambda: results(daemon, run), "the call has failed")
            (call,) = client.call(m.ListCalls(id=client.next_id(), run=run), m.CallPage).calls
            (tmp_path / "done").touch()
            usage = ended(client, run).usage
    words = "ended; it was charged as reserved" if sent else "was sent; it costs nothing"
    assert call.error == f"the gateway was killed before it {words}"
    assert (call.at_most, usage.at_most) == (sent, sent)
    assert call.cost_usd == usage.cost_usd
    assert (call.cost_usd or 0) >= provider.usd
    assert bool(call.cost_usd) == sent
    shown = daemon.sfactl("info", run).stdout
    assert ("at most" in shown) == sent


@variant
def test_callers_of_a_gateway_that_cannot_start_are_refused_until_it_can(
    start: Start, provider: Provider, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'sfad.features.gateway.program' in sys.orig_argv and "
        f"os.path.exists({str(broken)!r}):\n    os._exit(3)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    daemon = start(config=config(provider), wrap=("env", f"PYTHONPATH={path}"))
    with daemon.client() as client:
        run = calling(client, output=100, stall=True, calls=2, on=True)
        wait_until(lambda: provider.stalled == 1, "a reply is in its middle")
        broken.touch()
        pid, port = gateway(daemon)
        os.kill(pid, signal.SIGKILL)
        assert ended(client, run.id).status is Status.FAILED
        assert results(daemon, run.id)[1]["error"] in {
            "ConnectionRefusedError",
            "ConnectionResetError",
        }
        wait_until(lambda: "runs cannot reach their model" in daemon.log.read_text(), "it is said")
        assert daemon.log.read_text().count('"type":"gateway_ended"') < 5
        with pytest.raises(ConnectionRefusedError):
            post(port)
        broken.unlink()
        wait_until(lambda: answers(port), "it is back")
        assert ended(client, calling(client, output=10).id).status is Status.COMPLETED


# ---- whom it serves


def test_a_caller_outside_any_run_is_refused(
    share: Start, provider: Provider, containment: str
) -> None:
    daemon = share(config=config(provider), mode=containment)
    _, port = gateway(daemon)
    assert post(port) == 403
    assert post(port, "/run/a1.0000/anthropic/v1/messages") == 403
    assert provider.bills == []


@as_root
def test_another_user_is_refused_in_a_run_and_outside(
    share: Start, provider: Provider, containment: str
) -> None:
    daemon = share(config=config(provider), mode=containment)
    with daemon.client() as client:
        run = calling(client, uid=GONE)
        ended(client, run.id)
    assert [each["status"] for each in results(daemon, run.id)] == [403]
    _, port = gateway(daemon)
    assert as_nobody(lambda: post(port)) == "403"
    assert provider.bills == []


@as_root
def test_a_process_that_leaves_its_cgroup_is_refused(start: Start, provider: Provider) -> None:
    daemon = start(config=config(provider), mode="cgroup")
    with daemon.client() as client:
        run = calling(client, cgroup=os.path.dirname(cgroupfs.locate("0" * 12).directory))
        ended(client, run.id)
    assert [each["status"] for each in results(daemon, run.id)] == [403]
    assert provider.bills == []


def test_what_a_child_uses_counts_for_its_ancestors(
    share: Start, provider: Provider, containment: str
) -> None:
    daemon = share(config=config(provider), mode=containment)
    with daemon.client() as client:
        run = calling(client, children=2, output=100)
        over = ended(client, run.id)
    assert over.total_cost_usd == pytest.approx(provider.usd)
    assert not over.usage.cost_usd
    assert len(provider.bills) == 2


# ---- held calls


def test_resuming_a_run_lets_its_held_call_go_on(serving: Daemon, provider: Provider) -> None:
    with serving.client() as client:
        run = calling(client, limit("cost", 0.05, "pause"))
        reason = held(client, run.id).reason
        assert reason is not None
        assert (reason.kind, reason.limit_kind) == ("limit", "cost")
        assert info(client, run.id).pid is not None
        assert not frozen(info(client, run.id).pid)
        done = serving.sfactl("resume", run.id, "--limit", "cost=1")
        assert done.returncode == 0, done.stderr
        over = ended(client, run.id)
    assert (over.status, len(provider.bills)) == (Status.COMPLETED, 1)
    assert results(serving, run.id)[0]["whole"]


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_a_call_that_asks_for_an_increase_is_held_until_the_answer(
    serving: Daemon, provider: Provider, answer: str
) -> None:
    with serving.client() as client:
        run = calling(client, limit("cost", 0.05, "request_increase"))
        held(client, run.id)
        words = ("--limit", "cost=1") if answer == "approve" else ()
        done = serving.sfactl(answer, run.id, *words)
        assert done.returncode == 0, done.stderr
        over = ended(client, run.id)
    assert over.status is (Status.COMPLETED if answer == "approve" else Status.FAILED)
    assert len(provider.bills) == (answer == "approve")


def test_a_run_with_a_held_call_can_be_stopped(serving: Daemon, provider: Provider) -> None:
    with serving.client() as client:
        run = calling(client, limit("cost", 0.05, "pause"))
        held(client, run.id)
        assert serving.sfactl("stop", run.id).returncode == 0
        assert ended(client, run.id).status is Status.CANCELLED
    assert provider.bills == []


def test_nothing_is_frozen_while_a_call_is_held(serving: Daemon, provider: Provider) -> None:
    """Another reply is in its middle, and ends."""
    with serving.client() as client:
        run = calling(
            client, limit("messages", 1, "pause"), threads=1, calls=2, output=100, stall=True
        )
        wait_until(lambda: provider.stalled == 1, "a reply is in its middle")
        provider.released.set()
        held(client, run.id)
        assert [each["whole"] for each in results(serving, run.id)] == [True]
        assert not frozen(info(client, run.id).pid)
        stopped(client, run.id)


def test_the_reply_to_a_run_that_is_paused_is_charged_meanwhile_and_not_lost(
    serving: Daemon, provider: Provider
) -> None:
    """It is of 12 MB, more than the kernel keeps."""
    with serving.client() as client:
        run = calling(client, limit("cost", 100), output=3_000_000, stall=True)
        wait_until(lambda: provider.stalled == 1, "a reply is in its middle")
        done = serving.sfactl("pause", run.id)
        assert done.returncode == 0, done.stderr
        provider.released.set()
        wait_until(lambda: states(client, run.id) == ["ended"], "the reply was read")
        paused = info(client, run.id)
        assert (paused.status, frozen(paused.pid)) == (Status.PAUSED, True)
        assert paused.total_cost_usd == pytest.approx(provider.usd)
        assert serving.sfactl("resume", run.id).returncode == 0
        over = ended(client, run.id)
    assert (over.status, over.usage.partial) == (Status.COMPLETED, False)
    assert over.total_cost_usd == pytest.approx(provider.usd)
    assert results(serving, run.id)[0]["whole"]


def test_a_caller_that_hangs_up_is_forgotten(
    serving: Daemon, provider: Provider, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    with serving.client() as client:
        run = calling(client, limit("cost", 0.05, "pause"), hang_up=0.5, then=str(done))
        held(client, run.id)
        wait_until(lambda: results(serving, run.id), "it has hung up")
        wait_until(
            lambda: states(client, run.id) == ["withdrawn"], "the gateway has withdrawn its call"
        )
        client.call(
            m.Resume(id=client.next_id(), run=run.id, limits=[limit("cost", 1)]), m.RunReply
        )
        done.touch()
        assert not ended(client, run.id).total_cost_usd
    assert provider.bills == []


def states(client: Client, run: str) -> list[str]:
    """Return the states of a run's calls."""
    return [
        call.state
        for call in client.call(m.ListCalls(id=client.next_id(), run=run), m.CallPage).calls
    ]


def frozen(pid: int | None) -> bool:
    """Return whether a process is stopped, or in a cgroup that is frozen."""
    words = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    within = next(line[3:] for line in words if line.startswith("0::"))
    mount = cgroupfs.locate("0" * 12)
    events = Path(mount.directory[: -len(mount.path)] + within, "cgroup.events")
    return state == "T" or (events.exists() and "frozen 1" in events.read_text())


# ---- where calls go


def test_a_persons_own_address_is_the_upstream_of_the_run_and_of_its_children(
    serving: Daemon, provider: Provider
) -> None:
    with providing() as own, serving.client() as client:
        ended(client, calling(client, url=f"{own.url}/", output=10).id)
        ended(client, calling(client, url=own.url, output=10, children=1).id)
        assert (len(own.bills), len(provider.bills)) == (2, 0)


def test_a_run_that_chooses_an_address_goes_around_the_gateway(
    serving: Daemon, provider: Provider
) -> None:
    """Its key is for that address: the upstream of its tree must not get it."""
    with providing() as other, serving.client() as client:
        over = ended(client, calling(client, output=10, children=1, child_url=other.url).id)
        assert over.status is Status.COMPLETED
        assert (len(other.bills), len(provider.bills)) == (1, 0)
        (child,) = (
            run
            for run in client.call(m.List(id=client.next_id(), root=over.id), m.RunList).runs
            if run.id != over.id
        )
        assert "gateway" not in child.usage_by_source


def test_the_gateways_own_address_is_no_upstream(serving: Daemon, provider: Provider) -> None:
    with serving.client() as client:
        url = f"http://127.0.0.1:{gateway(serving)[1]}/anthropic"
        assert ended(client, calling(client, url=url, output=10).id).status is Status.COMPLETED
    assert len(provider.bills) == 1


# ---- ends


def test_a_run_that_ends_in_the_middle_of_a_stream_is_charged_what_was_streamed(
    serving: Daemon, provider: Provider
) -> None:
    with serving.client() as client:
        run = calling(client, limit("cost", 5), stall=True)
        wait_until(lambda: provider.stalled == 1, "a reply is in its middle")
        stopped(client, run.id)
        over = ended(client, run.id)
    assert over.total_cost_usd == pytest.approx(provider.usd, rel=0.2)
    assert over.usage.partial


def test_no_gateway_is_left_after_its_daemon(gated: Daemon, provider: Provider) -> None:
    with gated.client() as client:
        calling(client, stall=True)
        wait_until(lambda: provider.stalled == 1, "a reply is in its middle")
    pid, _ = gateway(gated)
    assert gated.stop() == 0
    assert not alive(pid)
    assert "started again" not in gated.log.read_text()


def test_a_gateway_that_is_switched_off_ends_after_its_calls(
    gated: Daemon, provider: Provider
) -> None:
    with gated.client() as client:
        run = calling(client, stall=True, output=100)
        wait_until(lambda: provider.stalled == 1, "a reply is in its middle")
        pid, port = gateway(gated)
        reload(gated, config(provider, enabled=False))
        assert alive(pid)
        provider.released.set()
        assert ended(client, run.id).total_cost_usd == pytest.approx(provider.usd)
        wait_until(lambda: not alive(pid), "the gateway ends")
        reload(gated, config(provider))
        wait_until(lambda: gateway(gated)[0] != pid, "another gateway is started")
        assert gateway(gated)[1] == port
        assert ended(client, calling(client, output=100).id).status is Status.COMPLETED


def test_another_upstream_counts_from_the_next_call(gated: Daemon) -> None:
    with providing() as other, gated.client() as client:
        ended(client, calling(client, output=10).id)
        reload(gated, config(other))
        wait_until(
            lambda: ended(client, calling(client, output=10).id) and other.bills,
            "calls go to the other",
        )


def reload(daemon: Daemon, text: str) -> None:
    """Give the daemon another config."""
    daemon.config.write_text(text)
    done = daemon.sfactl("reload")
    assert done.returncode == 0, done.stderr


@variant
def test_no_descriptor_is_left_of_gateways_that_were_killed(gated: Daemon) -> None:
    with gated.client() as client:
        ended(client, calling(client, output=10).id)
        before = gated.descriptors()
        for _ in range(2):
            killed_gateway(gated)
            assert ended(client, calling(client, output=10).id).status is Status.COMPLETED
        wait_until(
            lambda: gated.descriptors() <= before, "the descriptors of killed gateways are closed"
        )


def test_the_gateway_ignores_a_package_in_the_working_directory(
    start: Start, provider: Provider, tmp_path: Path
) -> None:
    daemon = start(config=config(provider))
    daemon.stop()
    (tmp_path / "sfad").mkdir()
    (tmp_path / "sfad" / "__init__.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('executed').touch()\n"
    )
    daemon.restart(
        command=[
            "sh",
            "-c",
            'cd "$0" && exec "$@"',
            str(tmp_path),
            sys.executable,
            "-P",
            "-m",
            "sfad",
        ]
    )
    with daemon.client() as client:
        assert ended(client, calling(client, output=10).id).status is Status.COMPLETED
    assert not (tmp_path / "sfad" / "executed").exists()


@pytest.mark.parametrize(
    ("tools", "why"),
    [
        ({"blocked_tools": ["Bash"]}, "--block-tool forbids"),
        ({"allowed_tools": ["Read"]}, "--allow-tool does not name"),
        ({}, None),
    ],
)
def test_a_forbidden_tool_in_a_reply_ends_the_run(
    serving: Daemon, tools: dict[str, list[str]], why: str | None
) -> None:
    with serving.client() as client:
        words = [
            sys.executable,
            CALLER,
            json.dumps({"tool": "Bash", "output": 100, "then": "/nowhere" if why else None}),
        ]
        reply = spawn(client, [*words], **tools)
        assert isinstance(reply, m.RunReply), reply
        run = ended(client, reply.run.id)
    if why is None:
        assert run.status is Status.COMPLETED
    else:
        assert run.reason is not None
        assert (run.status, run.reason.limit_kind) == (Status.FAILED, "tool")
        assert f"its agent called the tool 'Bash', which {why}" in run.reason.message


def test_a_gateway_that_stands_still_does_not_keep_the_daemon_from_ending(start: Start) -> None:
    daemon = start(config="[gateway]\nenabled = true\n")
    with daemon.client() as client:
        pid = wait_until(
            lambda: client.call(m.DaemonInfo(id=0), m.DaemonStatus).gateway_pid,
            "the gateway is there",
        )
    os.kill(pid, signal.SIGSTOP)
    assert daemon.stop() == 0
    assert not alive(pid)


# ---- bodies that are not small


@variant
def test_a_large_body_is_read_by_a_process_that_ends_with_the_gateway(gated: Daemon) -> None:
    with gated.client() as client:
        run = calling(client, limit("cost", 20, "refuse"), output=100, padding=2_000_000)
        assert ended(client, run.id).status is Status.COMPLETED
        pid, _ = gateway(gated)
        (reader,) = (process.pid for process in psutil.Process(pid).children())
        assert (
            b"sfad.features.gateway.program.bodies.reading"
            in Path(f"/proc/{reader}/cmdline").read_bytes()
        )
        assert [result["status"] for result in results(gated, run.id)] == [200]
        killed_gateway(gated)
        wait_until(lambda: not alive(reader), "it has ended")
        again = calling(client, limit("cost", 20, "refuse"), output=100, padding=2_000_000)
        assert ended(client, again.id).status is Status.COMPLETED
