"""A whole loop with a real ledger, a real spool and a launcher without processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from sfad import config as configuration
from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.state.access import Peer
from sfad.daemon.loop.pending_requests import PendingSpawn
from sfad.daemon.loop.resources import EarlyEvents, Resources
from sfad.daemon.loop.runtime import Runtime
from sfad.durable.spool import Spool
from sfad.host.clock import Timers
from sfad.host.counts import Counts
from sfad.host.files import Damages
from sfad.host.log import Log
from sfad.host.tasks import LoopRounds
from sfad.processes.launcher import LaunchSpec
from sfad.protocol.messages import Spawn
from sfad.start.asking import fill_in_asked
from sfad.start.prepared import Prepared, Surroundings
from sfad.storage.ledger import Ledger, OpenedLedger
from sfad.storage.output.files import OutputFiles
from tests.harness import PATIENCE
from tests.processes.fake import FakeLauncher, Script

ANN = Peer(0, "ann")


@asynccontextmanager
async def shell(
    directory: Path, kind: type[FakeLauncher], config: str = "", *, everyone: bool = False
) -> AsyncIterator[Runtime]:
    """Serve a loop on the state directory `directory`. `everyone`: it serves each user."""
    rounds = LoopRounds()
    trio.lowlevel.add_instrument(rounds)
    ledger = Ledger(OpenedLedger(directory / "state", lock_wait=0.05, busy_timeout=0.1), rounds)
    (directory / "sfad.toml").write_text(config)
    loaded = configuration.load([directory / "sfad.toml"])
    log, early_events = Log("error", file=directory / "log"), EarlyEvents()
    timers = Timers(log.internal_error)
    launcher = kind(
        emit=early_events.put,
        clock=trio.current_time,
        script=lambda _run, _spec: Script(after=None),
    )
    resources = Resources(
        log, timers, rounds, Spool(directory / "spool", timers, rounds, print), ledger,
        OutputFiles(directory / "output"), launcher, early_events, str(directory / "s"),
        str(directory), lambda: None, Counts(), Damages(print), everyone,
    )  # fmt: skip
    runtime = Runtime(
        resources, loaded, shut_down=lambda: None,
        read_config=lambda: (configuration.load([directory / "sfad.toml"]), []),
    )  # fmt: skip
    early_events.pass_on(runtime.launcher_events.arrived)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(runtime.serve)
            await runtime.metering.read_ended((), calls=False)
            yield runtime
            nursery.cancel_scope.cancel()
    runtime.close()
    ledger.close()
    runtime.resources.log.close()


def bare(order: Spawn) -> Surroundings:
    """Return what is around a request where nothing else is."""
    return Surroundings(order=order, peer=ANN, user=None, client=1, live={}, agents=dict)


def undecided(around: Surroundings) -> Prepared:
    """Return a request as it was asked, with what the core is asked of it."""
    prepared = Prepared.of(around.order)
    fill_in_asked(prepared, around)
    return prepared


AGENT = Spawn(id=1, argv=[b"agent"], cwd=b"/", env=[])


def spec_of(env: list[bytes]) -> LaunchSpec:
    """Return what the heart launches `AGENT` with."""
    return LaunchSpec(AGENT.argv, AGENT.cwd, env)


async def spawned(runtime: Runtime, spawn: Spawn = AGENT, peer: Peer = ANN) -> str:
    """Return a run that was admitted, now or for an earlier request with the same key."""
    answer = await asked(runtime, spawn, peer)
    if isinstance(answer, c.Known):
        return answer.run
    assert isinstance(answer, c.SpawnDone)
    return answer.run.id


async def refused(runtime: Runtime) -> str:
    """Return why there is no run."""
    answer = await asked(runtime)
    assert isinstance(answer, c.ErrorAnswer)
    return answer.message


async def stopped(runtime: Runtime, run: str) -> None:
    """Stop a run, and wait until it is over."""
    over = trio.Event()
    runtime.requests.ask(
        lambda _said: over.set(),
        lambda token, now: e.StopRequested(now, token, ANN, (run,), grace=0.01),
    )
    await over.wait()


async def asked(runtime: Runtime, spawn: Spawn = AGENT, peer: Peer = ANN) -> c.Answer:
    """Return the answer to a spawn."""
    answers = list[c.Answer]()
    done = trio.Event()

    def answer(said: c.Answer) -> None:
        answers.append(said)
        done.set()

    around = runtime.starting.around(spawn, peer, None, connection=1)
    runtime.requests.spawn(PendingSpawn(undecided(around), around), answer)
    await done.wait()
    return answers[0]
