"""Agents within a program: what the daemon does for them as for any run, and what a function in a
process makes different."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from msgspec.structs import replace

from sfactl import (
    Agent,
    AgentStopped,
    Daemon,
    Refused,
    RequestFailed,
    SfadError,
    TrioAgent,
    TrioDaemon,
)
from sfactl.api import asking
from sfactl.api.agents import end
from sfactl.api.options import spawn_of
from sfad.processes import kernel
from sfad.processes.contain.cgroup import cgroupfs
from sfad.protocol.types import LimitKind, RunInfo, Status
from tests import harness
from tests.conftest import Start
from tests.e2e.provider import Provider, providing
from tests.e2e.test_gateway import config
from tests.harness import PATIENCE, alive, wait_until


@pytest.fixture
def real(share: Start) -> harness.Daemon:
    return share()


@pytest.fixture
def daemon(real: harness.Daemon) -> Iterator[Daemon]:
    with Daemon(str(real.socket)) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with providing() as provider:
        yield provider


@pytest.fixture
def place(share: Start, provider: Provider) -> str:
    """The socket of a daemon whose gateway leads to the provider."""
    provider.forget()
    return str(share(config=config(provider)).socket)


@pytest.fixture
def gated(place: str) -> Iterator[Daemon]:
    with Daemon(place) as daemon:
        yield daemon


def call(url: str, *, output: int = 100, padding: int = 0) -> tuple[int, str]:
    """Make one model call. Return the status and the reply."""
    parts = urlsplit(url)
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": output,
        "stream": True,
        "messages": [{"role": "user", "content": "x" * padding}],
        "metadata": {"stall": False, "tool": None, "does": None},
    }
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)
    try:
        connection.request("POST", f"{parts.path}/v1/messages", json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def _pids_max(pid: int, *, above: int) -> str:
    """Return the bound of processes of a cgroup above that of a process."""
    path = Path(cgroupfs.directory_of(kernel.cgroup(pid) or "") or "/nonexistent")
    return (path.parents[above - 1] / "pids.max").read_text()


def test_it_is_a_run_as_any_other(real: harness.Daemon, daemon: Daemon) -> None:
    with daemon.admit(
        "reviewer", limits={"cost": 0.5, "turns": 20}, labels={"job": "x"}, type="qa"
    ) as agent:
        run = agent.info()
        assert (run.status, run.parent_id, run.pid) == (Status.RUNNING, None, os.getpid())
        assert (run.type, run.labels, run.chain) == ("qa", {"job": "x"}, ["reviewer"])
        with agent.admit("helper") as below:
            process = below.spawn(["sleep", "1000"], name="grandchild")
            pids = next(each for each in agent.info().limits if each.kind is LimitKind.PIDS)
            if pids.enforced_by == "kernel":
                assert _pids_max(process.info().pid or 0, above=2) == "1024\n"
            assert process.info().chain == ["reviewer", "helper", "grandchild"]
            tree = real.sfactl("tree").stdout
            assert tree.index("reviewer") < tree.index("helper") < tree.index("grandchild")
            with pytest.raises(Refused) as refused:
                below.admit("reviewer")
            assert refused.value.kind == "loop"
            assert "with" not in real.sfactl("why", below.id).stderr
        assert below.outcome is not None
        assert below.outcome.ok
        ended = process.wait(PATIENCE)
        assert ended.reason is not None
        assert (ended.status, ended.reason.kind) == (Status.CANCELLED, "ancestor")
        agent.report(turns=2, model="claude-sonnet-4-5", input_tokens=1000, output_tokens=100)
    assert agent.outcome is not None
    assert (agent.outcome.ok, agent.outcome.usage.turns) == (True, 2)
    assert agent.outcome.cost_usd == pytest.approx(0.0045)
    types = [event.type for event in daemon.events(runs=[agent.id], types=["run_*"])]
    assert types[:2] == ["run_accepted", "run_started"]
    assert types[-1] == "run_completed"
    assert agent.id in real.sfactl("list").stdout


def test_an_exception_is_a_failure(daemon: Daemon) -> None:
    with pytest.raises(KeyError), daemon.admit("fails") as agent:
        raise KeyError("x")
    assert agent.outcome is not None
    assert agent.outcome.reason is not None
    assert (agent.outcome.status, agent.outcome.reason.message) == (
        Status.FAILED,
        "KeyError: 'x'",
    )


def test_a_stop_tells_the_program(daemon: Daemon) -> None:
    told: list[AgentStopped] = []
    called = threading.Event()

    def on_stop(why: AgentStopped) -> None:
        told.append(why)
        called.set()

    def waits() -> None:
        with daemon.admit("stopped", limits={"time": "1h"}, on_stop=on_stop) as agent:
            ids.append(agent.id)
            begun.set()
            assert called.wait(PATIENCE)
            agent.spawn(["true"])

    ids: list[str] = []
    begun = threading.Event()
    with ThreadPoolExecutor() as threads:
        ended = threads.submit(waits)
        assert begun.wait(PATIENCE)
        stopped = daemon.stop(ids[0])
        with pytest.raises(AgentStopped, match="stopped by user") as raised:
            ended.result(PATIENCE)
    assert (stopped.stopped, stopped.survivors) == (ids, [])
    assert told == [raised.value]
    reason = daemon.run(ids[0]).info().reason
    assert reason is not None
    assert (reason.kind, reason.left_running) == ("stop", False)


def test_what_does_not_end_within_the_grace_is_left_running(daemon: Daemon) -> None:
    with daemon.admit("late", limits={"time": 1}, grace=0.1) as agent:
        below = agent.spawn(["sleep", "1000"])
        ended = daemon.run(agent.id).wait(PATIENCE)
        assert below.wait(PATIENCE).status is Status.CANCELLED
        assert agent.stopped is not None
        assert (agent.stopped.kind, agent.stopped.detail) == ("limit", "time")
        with pytest.raises(AgentStopped):
            agent.base_url()
    assert ended.reason is not None
    assert (ended.status, ended.reason.left_running) == (Status.TIMEOUT, True)
    assert ended.reason.message.endswith("it is left running")


def test_the_handle_narrows_and_cannot_raise(gated: Daemon, provider: Provider) -> None:
    with gated.admit("steps", limits={"cost": 0.5, "turns": 20}) as agent:
        url = agent.base_url()
        with pytest.raises(RequestFailed, match="outside its range"), agent.limit(cost=0.001):
            pass
        assert call(url, output=1000)[0] == 200
        with agent.limit(cost=0.05) as step:
            codes = [call(url, output=1000)[0] for _ in range(6)]
            assert 3 <= codes.count(200) < 6
            assert codes[-1] == 400
            wait_until(lambda: step.exceeded, "the breach is told")
        assert call(url, output=1000)[0] == 200
        with pytest.raises(ValueError, match="which limits"), agent.limit():
            pass
        with pytest.raises(RequestFailed, match="cannot be narrowed"), agent.limit(tokens=5):
            pass
        cost = {each.kind: each for each in agent.info().limits}[LimitKind.COST]
        assert (cost.threshold, cost.action) == (0.5, "terminate")
        assert cost.source.startswith("admit() cost by user")
        with agent.limit(cost=0.05):
            pass
        again = {each.kind: each for each in agent.info().limits}[LimitKind.COST]
        assert again.source == cost.source
        assert not {"approve", "resume", "deny", "stop"} & set(dir(agent))
    assert agent.outcome is not None
    assert agent.outcome.ok
    assert agent.outcome.cost_usd == pytest.approx(provider.usd)


def test_bills_of_parallel_agents_are_exact(gated: Daemon, provider: Provider) -> None:
    """One of them hits its limit, and the others finish."""
    padding = {"a": 0, "b": 4000, "poor": 0}

    def work(name: str) -> tuple[str, list[int]]:
        limits = {"cost": 0.02 if name == "poor" else 5.0, "turns": 50.0}
        with agent.admit(name, limits=limits) as own:
            url, codes = own.base_url(), []
            for _ in range(8):
                codes.append(call(url, output=500, padding=padding[name])[0])
                if own.stopped is not None:
                    break
        ids[name] = own.id
        return name, codes

    ids: dict[str, str] = {}
    with gated.admit("program") as agent, ThreadPoolExecutor() as threads:
        codes = dict(threads.map(work, padding))
    ended = {name: gated.run(run).info() for name, run in ids.items()}
    assert codes["a"] == codes["b"] == [200] * 8
    assert codes["poor"][-1] == 400
    assert ended["a"].status is ended["b"].status is Status.COMPLETED
    poor = ended["poor"].reason
    assert poor is not None
    assert (ended["poor"].status, poor.kind, poor.limit_kind) == (Status.FAILED, "limit", "cost")
    by_size: dict[int, float] = {}
    for bill in provider.bills:
        by_size[bill.size] = by_size.get(bill.size, 0) + bill.usd
    assert ended["b"].usage.cost_usd == pytest.approx(by_size[max(by_size)])
    spent = [each.usage.cost_usd or 0 for each in ended.values()]
    assert sum(spent) == pytest.approx(provider.usd)
    assert agent.outcome is not None
    assert agent.outcome.cost_usd == pytest.approx(provider.usd)
    assert (ended["poor"].usage.cost_usd or 0) <= 0.02


def test_a_limit_that_concludes_has_a_last_call(gated: Daemon, provider: Provider) -> None:
    with gated.admit("concludes", limits={"cost": "0.1:conclude"}) as agent:
        url = agent.base_url()
        answers = [call(url, output=2000)]
        while answers[-1][0] == 200:
            answers.append(call(url, output=2000))
        wait_until(lambda: agent.stopped is not None, "it is told")
    assert "has made its last call" in answers[-1][1]
    sizes = [bill.size for bill in provider.bills]
    assert len(sizes) == len(answers) - 1
    assert len(set(sizes[:-1])) == 1
    assert sizes[-1] > sizes[0] + len("This is your last answer")
    assert agent.outcome is not None
    assert agent.outcome.reason is not None
    assert (agent.outcome.status, agent.outcome.reason.kind) == (Status.FAILED, "limit")
    assert 0.09 * 0.9 <= provider.usd <= 0.1


def test_only_its_process_may_call_its_address(gated: Daemon, provider: Provider) -> None:
    with gated.admit("owner") as agent:
        url = agent.base_url()
        code = f"import sys; sys.path[:0] = {sys.path!r}\nfrom {__name__} import call\n"
        other = [sys.executable, "-c", f"{code}print(*call({url!r}))"]
        said = subprocess.run(other, capture_output=True, text=True, check=True).stdout
        assert said.startswith("403 ")
        assert f"only process {os.getpid()} may call the address of run {agent.id}" in said
        assert call(url)[0] == 200
    status, said = call(url)
    assert (status, f"run {agent.id} has ended" in said) == (403, True)
    assert len(provider.bills) == 1


def test_another_process_may_not_end_it_or_start_below_it(
    real: harness.Daemon, daemon: Daemon
) -> None:
    with program(real) as (process, agent, _, _):
        below = replace(spawn_of(["true"], None, {}), below=agent)
        calls: list[asking.Call[Any]] = [asking.spawn(below), end(agent, None)]
        for asked in calls:
            with pytest.raises(RequestFailed) as raised:
                daemon.ask(asked)
            assert raised.value.kind == "not_permitted"
        process.communicate(b"\n", PATIENCE)
    assert daemon.run(agent).wait(PATIENCE).ok


@pytest.mark.parametrize("what", [{"attempts": 2}, {"worktree": "x"}, {"cwd": "/"}])
def test_what_a_function_cannot_have_is_refused(daemon: Daemon, what: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="admit has no option"):
        daemon.admit("x", **what)  # type: ignore[arg-type]
    with pytest.raises(RequestFailed, match="no process of its own, so memory"):
        daemon.admit("x", limits={"memory": "1G"})


def test_exactly_as_many_as_the_budget_allows(daemon: Daemon) -> None:
    def admit(number: int) -> bool:
        try:
            agents.append(parent.admit(f"agent-{number}", limits={"time": "10m"}))
        except Refused as refused:
            rules.add(refused.kind)
            return False
        return True

    agents, rules = list[Agent](), set[str]()
    with daemon.admit("parent", max_descendants=64, limits={"time": "10m"}) as parent:
        with ThreadPoolExecutor(40) as threads:
            admitted = list(threads.map(admit, range(200)))
        assert admitted.count(True) == len(agents) == 64
        assert rules == {"budget"}
        assert parent.info().descendants == 64
        with ThreadPoolExecutor(16) as threads:
            assert all(outcome.ok for outcome in threads.map(lambda each: each.end(), agents))


# ---- Ends of the program, and of the daemon


def words(real: harness.Daemon, *how: str) -> list[str]:
    """Return the command of the program, which works in any directory."""
    code = (
        f"import runpy, sys; sys.path[:0] = {sys.path!r}; "
        "runpy.run_module('tests.features.admitted.program', run_name='__main__')"
    )
    return [sys.executable, "-c", code, str(real.socket), *how]


@contextmanager
def program(
    real: harness.Daemon, *how: str
) -> Iterator[tuple[subprocess.Popen[bytes], str, str, int]]:
    """Yield a program, its agent, the run below that, and the process that it has forked."""
    process = subprocess.Popen(
        words(real, *how), cwd=real.state_dir, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=real.env,
    )  # fmt: skip
    child = 0
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode().rstrip("\n")
        agent, below, forked = line.split(" ")
        child = int(forked)
        yield process, agent, below, child
    finally:
        process.kill()
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("how", [(), ("forks",), ("spawns",)])
def test_it_ends_with_its_program(
    real: harness.Daemon, daemon: Daemon, how: tuple[str, ...]
) -> None:
    """Also if a process that it has forked has its connection."""
    with program(real, *how) as (process, agent, below, _):
        process.kill()
        ended = daemon.run(agent).wait(PATIENCE)
        assert ended.reason is not None
        assert ended.status in {Status.FAILED, Status.CANCELLED}
        assert "without ending it" in ended.reason.message
        if below:
            assert daemon.run(below).wait(PATIENCE).status is Status.CANCELLED


def test_it_ends_with_its_connection(real: harness.Daemon, daemon: Daemon) -> None:
    other = Daemon(str(real.socket))
    agent = other.admit("closed")
    other.close()
    assert agent.stopped is not None
    ended = daemon.run(agent.id).wait(PATIENCE)
    assert ended.reason is not None
    assert (ended.status, ended.reason.kind) == (Status.CANCELLED, "client")
    assert not ended.reason.left_running
    with suppress(SfadError):
        agent.end()
    other.close()


@pytest.mark.parametrize("how", [(), ("ignores",)])
def test_a_stop_can_end_the_process(
    real: harness.Daemon, daemon: Daemon, how: tuple[str, ...]
) -> None:
    with program(real, "terminates", "deaf", *how) as (process, agent, _, _):
        stopped = daemon.stop(agent, grace=0.2)
        assert stopped.survivors == []
        assert process.wait(PATIENCE) == (-signal.SIGKILL if how else -signal.SIGTERM)
    assert daemon.run(agent).info().status is Status.CANCELLED


@pytest.mark.parametrize("way", ["kill", "re-execute"])
def test_a_daemon_that_restarts_keeps_it(share: Start, way: str, provider: Provider) -> None:
    real = share(config=config(provider))
    with Daemon(str(real.socket)) as daemon, daemon.admit("kept", timeout="1h") as agent:
        url = agent.base_url()
        below = agent.spawn(["sleep", "1000"])
        narrowed = agent.limit(cost=0.5)
        narrowed.__enter__()
        assert call(url)[0] == 200
        if way == "kill":
            real.kill()
            real.restart()
        else:
            real.reexecute()
        assert agent.info().status is Status.RUNNING
        assert below.info().status is Status.RUNNING
        wait_until(lambda: call(url)[0] == 200, "its address serves")
        with agent.admit("helper"):
            pass
        narrowed.__exit__(None, None, None)
        cost = {each.kind: each for each in agent.info().limits}[LimitKind.COST]
        assert (cost.threshold, cost.action) == (1, "terminate")
        assert agent.stopped is None
        stopping = threading.Thread(target=daemon.stop, args=(agent.id,))
        stopping.start()
        wait_until(lambda: agent.stopped is not None, "it is told")
    stopping.join(PATIENCE)
    assert agent.outcome is not None
    assert agent.outcome.status is Status.CANCELLED
    assert below.wait(PATIENCE).status is Status.CANCELLED


def test_a_program_that_is_gone_when_the_daemon_is_back(real: harness.Daemon) -> None:
    with program(real, "spawns") as (process, agent, below, _):
        real.kill()
        process.kill()
        process.wait()
        real.restart()
        with Daemon(str(real.socket)) as daemon:
            assert daemon.run(agent).wait(PATIENCE).status is Status.LOST
            assert daemon.run(below).wait(PATIENCE).status is Status.CANCELLED


def test_an_agent_within_a_run_is_its_child(real: harness.Daemon, daemon: Daemon) -> None:
    """It ends with that; the program is a process of it."""
    command = words(real, "deaf")
    outer = daemon.spawn(command, name="outer", cwd=str(real.state_dir), limits={"time": "1h"})
    output = outer.logs(follow=True)
    agent = daemon.run(next(output).decode().split()[0])
    info = agent.info()
    assert (info.parent_id, info.chain) == (outer.id, ["outer", "within"])
    stopped = outer.stop(grace=0.2)
    assert stopped.survivors == []
    assert agent.wait(PATIENCE).status is Status.CANCELLED
    assert not alive(info.pid or 0)


# ---- trio


async def test_trio_cancels_the_block(place: str, provider: Provider) -> None:
    """Of two agents one hits its limit, and the other finishes."""
    ended: dict[str, RunInfo] = {}

    async def work(daemon: TrioDaemon, name: str, cost: float) -> None:
        calls = 0
        async with daemon.admit(name, limits={"cost": cost}) as agent:
            url = await agent.base_url()
            for _ in range(6):
                await trio.to_thread.run_sync(lambda: call(url, output=500))
                calls += 1
            if name == "poor":
                await trio.sleep_forever()
        assert (agent.stopped is not None) == (name == "poor")
        assert agent.outcome is not None
        ended[name] = agent.outcome.run

    with trio.fail_after(2 * PATIENCE):
        async with TrioDaemon(place) as daemon, trio.open_nursery() as nursery:
            nursery.start_soon(work, daemon, "poor", 0.02)
            nursery.start_soon(work, daemon, "rich", 5)
    assert (ended["poor"].status, ended["rich"].status) == (Status.FAILED, Status.COMPLETED)
    spent = [each.usage.cost_usd or 0 for each in ended.values()]
    assert sum(spent) == pytest.approx(provider.usd)


async def test_trio_tells_how_a_block_with_a_nursery_has_ended(place: str) -> None:
    agents: list[TrioAgent] = []

    async def runs(daemon: TrioDaemon, task: Callable[[], Awaitable[object]]) -> None:
        async with daemon.admit("nursery") as agent, trio.open_nursery() as nursery:
            agents.append(agent)
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(task)
            await trio.sleep_forever()

    async def cancels() -> None:
        scope.cancel()

    async def fails() -> None:
        raise KeyError("x")

    scope = trio.CancelScope()
    with trio.fail_after(2 * PATIENCE):
        async with TrioDaemon(place) as daemon:
            with scope:
                await runs(daemon, cancels)
            with pytest.raises(BaseExceptionGroup):
                await runs(daemon, fails)
    reasons = [each.outcome.reason for each in agents if each.outcome is not None]
    assert [each.message for each in reasons if each is not None] == [
        "its block was cancelled",
        "KeyError: 'x'",
    ]


async def test_trio_narrows_a_block_and_raises_what_the_block_raises(place: str) -> None:
    with trio.fail_after(2 * PATIENCE):
        async with TrioDaemon(place) as daemon:
            async with daemon.admit("steps", limits={"cost": 1}) as agent:
                url = await agent.base_url()
                async with agent.limit(cost=0.01) as step:
                    for _ in range(1000):
                        await trio.to_thread.run_sync(lambda: call(url, output=300))
                assert step.exceeded
                assert (await trio.to_thread.run_sync(lambda: call(url)))[0] == 200
            with pytest.raises(KeyError):
                async with daemon.admit("fails") as agent:
                    raise KeyError("x")
    assert agent.outcome is not None
    assert agent.outcome.status is Status.FAILED


def test_a_queued_one_waits_for_its_slot(start: Start) -> None:
    real = start(config="[quotas]\ntrees = 1\n")
    with Daemon(str(real.socket)) as daemon, ThreadPoolExecutor() as threads:
        first = daemon.spawn(["sleep", "1000"])
        second = threads.submit(daemon.admit, "second")
        queued = wait_until(lambda: list(daemon.runs(status="queued")), "it is queued")
        assert [each.name for each in queued] == ["second"]
        time.sleep(0)
        first.stop(grace=0)
        assert second.result(PATIENCE).end().ok
