"""The shell applies what the core has decided, whatever becomes of a part of it."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from sfad import config as configuration
from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.access import Peer
from sfad.launch.fake import FakeLauncher, Script
from sfad.ledger import Ledger
from sfad.observe.log import Log
from sfad.output.files import OutputStore
from sfad.protocol.messages import Spawn
from sfad.runtime.asking import MAX_SHOWN, asked_of
from sfad.runtime.memory import Memory
from sfad.runtime.runtime import Runtime
from tests.harness import PATIENCE

ANN = Peer(0, "ann")


class Clumsy(FakeLauncher):
    """A launcher that is short of descriptors whenever it has to signal."""

    def terminate(self, run: str, signal: int) -> None:
        """Fails."""
        raise OSError(errno.EMFILE, "Too many open files", f"{run} {signal}")


@asynccontextmanager
async def shell(directory: Path, kind: type[FakeLauncher]) -> AsyncIterator[Runtime]:
    """A runtime with a real ledger and no processes."""
    ledger = Ledger(directory / "state")
    loaded = configuration.load()
    runtime: Runtime
    launcher = kind(
        emit=lambda event: runtime.reported(event), clock=trio.current_time, script=lambda _run, _spec: Script(after=None)
    )
    runtime = Runtime(
        loaded=loaded, ledger=ledger, output=OutputStore(directory / "output"), launcher=launcher,
        log=Log("error", file=directory / "log"), socket="/s", state_dir=str(directory),
        memory=Memory(directory / "spool", print), on_shutdown=lambda: None,
    )  # fmt: skip
    ledger.start(on_committed=runtime.committed, on_failed=runtime.commit_failed, on_ended=runtime.recorded)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(runtime.serve)
            yield runtime
            nursery.cancel_scope.cancel()
    runtime.close()
    ledger.close()
    runtime.log.close()


async def spawned(runtime: Runtime) -> str:
    """A run that has started."""
    answers = list[c.Answer]()
    done = trio.Event()

    def answer(said: c.Answer) -> None:
        answers.append(said)
        done.set()

    spawn = Spawn(id=1, argv=[b"agent"], cwd=b"/", env=[])
    runtime.spawn(ANN, spawn, [], 1, answer, lambda _run: None)
    await done.wait()
    assert isinstance(answers[0], c.Admitted)
    return answers[0].run.id


async def test_a_command_that_fails_does_not_take_the_next_ones_along(tmp_path: Path) -> None:
    async with shell(tmp_path, Clumsy) as runtime:
        run = await spawned(runtime)
        stopped = trio.Event()
        runtime.ask(lambda _said: stopped.set(), lambda token, now: e.StopRequested(now, token, ANN, (run,), grace=0.01))
        # the signal could not be sent; the grace ends all the same, and SIGKILL comes
        await stopped.wait()
        assert run not in runtime.live
    assert "Too many open files" in (tmp_path / "log").read_text()


def test_a_long_command_is_shown_short_and_named_by_all_of_it() -> None:
    def asked(text: str) -> e.Asked:
        return asked_of(Spawn(id=1, argv=[b"sh", b"-c", text.encode()], cwd=b"/", env=[]), 1)

    first, second = asked("x" * 100_000 + "1"), asked("x" * 100_000 + "2")
    assert first.argv == second.argv
    assert sum(map(len, first.argv)) <= MAX_SHOWN + 1
    assert first.argv[-1].endswith("…")
    assert first.name != second.name
