"""Agent programs in runs are noticed: by the kernel's exec events, and where these cannot be had,
by looking at all processes."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path

import psutil
import pytest

from sfad.core.events import AgentProcess, AgentSeen, MainExited
from sfad.host.linux.process_events import ExecEvents
from sfad.processes import agent_watch, kernel
from tests.harness import wait_until
from tests.processes.rig import Rig

NAMES = frozenset({"claude", "codex"})


class _Unavailable:
    def __init__(self) -> None:
        raise PermissionError(errno.EPERM, "as in a container")


@pytest.fixture(params=["exec events", "looking"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of noticing."""
    if request.param == "looking":
        monkeypatch.setattr(agent_watch, "ExecEvents", _Unavailable)
    else:
        try:
            ExecEvents().close()
        except OSError as error:
            pytest.skip(f"the kernel tells no exec events here: {error}")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Agent programs: each copies its stdin, and `codex` starts another process of itself."""
    for name, text in (("claude", "cat"), ("codex", '[ "$1" = again ] && cat || "$0" again')):
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    os.mkfifo(tmp_path / "gate")
    return tmp_path


async def agent(rig: Rig, run: str, count: int = 1) -> AgentProcess:
    """Return the `count`-th agent that is told of a run."""
    seen: list[AgentProcess] = []
    mark = 0
    while len(seen) < count:
        event = await rig.wait(AgentSeen, run, after=mark)
        mark = rig.events.index(event, mark) + 1
        if event.process not in seen:
            seen.append(event.process)
    return seen[-1]


@pytest.mark.usefixtures("either_way")
async def test_what_is_told_of_an_agent(rig: Rig, programs: Path) -> None:
    rig.launcher.watch_agents(NAMES)
    # a shell that waits, and then becomes an agent; one that only mentions it; and the agent's own
    # second process
    script = f"""
    cd {programs}; tail -f claude >/dev/null &
    sh -c 'exec 3<gate; exec ./claude x' <gate & ./codex one <gate & wait
    """
    rig.launch("a1", "sh", "-c", script)
    await rig.running("a1")
    with (programs / "gate").open("w"):
        found = sorted(
            [await agent(rig, "a1", n) for n in (1, 2, 3)], key=lambda one: (one.program, one.pid)
        )
        claude, first, second = found
        main = rig.main("a1").pid
        assert [(one.program, one.command) for one in found] == [
            ("claude", "/bin/sh ./claude x"),
            ("codex", "/bin/sh ./codex one"),
            ("codex", "/bin/sh ./codex again"),
        ]
        assert claude.above == first.above == ((main, None),)
        assert second.above == ((first.pid, "codex"), (main, None))
        assert all(one.below_main and not one.is_main and not one.own_group for one in found)
    await rig.stop("a1")


@pytest.mark.usefixtures("either_way")
async def test_a_main_process_an_orphan_and_a_group_of_its_own(rig: Rig, programs: Path) -> None:
    rig.launch(
        "a1", str(programs / "claude"), stdin=(gate := os.open(programs / "gate", os.O_RDWR))
    )
    rig.launch("a2", str(programs / "claude"), parent="a1", stdin=gate)
    os.mkfifo(programs / "orphaned")
    become = f"read x <{programs}/orphaned; exec setsid {programs}/codex again <{programs}/gate"
    script = f"(sh -c '{become}' &); echo >{programs}/orphaned; exec cat"
    rig.launch("a3", "sh", "-c", script, stdin=gate)
    await rig.running("a1", "a2", "a3")
    rig.launcher.watch_agents(NAMES)  # as after a reload of the config
    own = await agent(rig, "a1")
    assert (own.pid, own.is_main, own.below_main) == (rig.main("a1").pid, True, False)
    assert (await agent(rig, "a2")).is_main
    orphan = await agent(rig, "a3")
    assert (orphan.program, orphan.is_main, orphan.below_main, orphan.above) == (
        "codex",
        False,
        False,
        (),
    )
    await rig.stop("a3", "a2", "a1")
    os.close(gate)


async def test_a_fork_of_an_agent_is_not_told_until_it_executes_one(
    rig: Rig, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_watch, "ExecEvents", _Unavailable)
    rig.launcher.watch_agents(NAMES)
    forking = f"""#!/usr/bin/python3
import os
if os.fork() == 0:
    os.setsid()
open("{programs}/gate").read()
"""
    (programs / "claude").write_text(forking)
    rig.launch("a1", str(programs / "claude"))
    rig.launch("a2", "sh", "-c", f"{programs}/codex again <{programs}/gate & wait")
    await rig.running("a1", "a2")
    with (programs / "gate").open("w"):
        await agent(rig, "a2")
        await agent(rig, "a1")
        told = {
            event.process.pid
            for event in rig.events
            if isinstance(event, AgentSeen) and event.run == "a1"
        }
        assert told == {rig.main("a1").pid}
    await rig.stop("a1", "a2")


async def test_a_fork_that_executes_another_program_while_it_is_looked_at_is_none(
    rig: Rig, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It executes `sleep` just after its command line was read. Once the agent of the second run is
    reported, every older process has been looked at."""
    monkeypatch.setattr(agent_watch, "ExecEvents", _Unavailable)
    forking = f"""#!/usr/bin/python3
import os, signal
if os.fork() == 0:
    os.setsid()
    open("{programs}/gate").read()
    os.execv("/bin/sleep", ["sleep", "1000"])
signal.pause()
"""
    (programs / "claude").write_text(forking)
    rig.launch("a1", str(programs / "claude"))
    await rig.running("a1")
    main = psutil.Process(rig.main("a1").pid)
    (fork,) = wait_until(main.children, "it has forked")
    executed, replaced = kernel.executed, list[int]()

    def meanwhile(pid: int) -> bool:
        if pid == fork.pid and not replaced:
            (programs / "gate").write_text("")
            wait_until(partial(executed, pid), "it has executed sleep")
            replaced.append(pid)
        return executed(pid)

    monkeypatch.setattr(kernel, "executed", meanwhile)
    rig.launcher.watch_agents(NAMES)
    rig.launch("a2", "sh", "-c", f"sleep 1000 | {programs}/codex again")
    await agent(rig, "a2")
    told = {each.process.pid for each in rig.events if isinstance(each, AgentSeen)}
    assert main.pid in told
    assert replaced == [fork.pid]
    assert fork.pid not in told
    await rig.stop("a1", "a2")


async def test_an_agent_of_200_ms_and_some_of_4_ms(rig: Rig, programs: Path) -> None:
    """Only the kernel's events find the first for certain, and any of the others, although the run
    ends within 50 ms."""
    try:
        ExecEvents().close()
    except OSError as error:
        pytest.skip(f"the kernel tells no exec events here: {error}")
    shutil.copy("/bin/sleep", programs / "codex")
    rig.launcher.watch_agents(NAMES)
    rig.launch("a1", "sh", "-c", f"for i in 1 2 3 4 5 6 7 8; do {programs}/codex 0.004; done")
    await rig.wait(MainExited, "a1")
    assert (await agent(rig, "a1")).program == "codex"
    await rig.stop("a1")
    rig.launch("a2", "sh", "-c", f"{programs}/claude </dev/null; sleep 0.2 | {programs}/claude")
    await rig.wait(MainExited, "a2")
    assert (await agent(rig, "a2")).program == "claude"
    await rig.stop("a2")
