"""Agent programs that were started within a run without asking: which count, and what follows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.core import commands as c
from sfad.core import events as e
from sfad.protocol.types import Event, Status

from .transcript import Transcript, bound, inside

MAIN = 10


def seen(
    pid: int = 30, *above: str | None, program: str = "claude", **facts: Any
) -> e.AgentProcess:
    """A process whose ancestors execute these programs, the last being the run's main process."""
    line = tuple(zip(range(pid - 1, 0, -1), above[:-1], strict=False)) + tuple(
        (MAIN, last) for last in above[-1:]
    )
    return e.AgentProcess(
        pid, 7, program, "claude -p x", line, **({"below_main": bool(above)} | facts)
    )


def counted(t: Transcript, run: str, process: e.AgentProcess) -> bool:
    before = t.run(run).admitted
    (t >> e.AgentSeen(t.at, run, process)).skip()
    return t.run(run).admitted > before


@pytest.mark.parametrize(
    ("argv", "process", "counts"),
    [
        ("claude -p x", seen(30, None, "claude"), True),  # claude → bash → claude
        ("claude -p x", seen(30, None, None, "claude"), True),
        ("sh night.sh", seen(30, None), True),
        ("codex exec x", seen(30, None, "codex"), True),  # another program
        ("codex exec x", seen(30, "codex", program="claude"), True),
        # the main process, whatever it executes
        ("claude -p x", seen(MAIN, is_main=True), False),
        ("sh night.sh", seen(MAIN, is_main=True), False),
        # the run's own program behind a launcher
        ("timeout 5 claude", seen(30, None), False),
        ("npx @anthropic-ai/claude-code", seen(30, None, None), False),
        ("timeout 5 codex", seen(30, None), True),
        # executes itself again, or a helper: in the same process group
        ("codex exec x", seen(30, "codex", program="codex"), False),
        ("sh night.sh", seen(30, "claude", None), False),
        # `bash -c "codex exec y"` in Codex: the shell has executed codex in its own place
        ("codex exec x", seen(30, "codex", program="codex", own_group=True), True),
        # its own server in the background, which another program may start, too
        ("codex", seen(30, "codex", program="codex", own_group=True, serves=True), False),
        ("sh night.sh", seen(30, None, program="codex", own_group=True, serves=True), True),
        # an orphan: nothing leads to the main process
        ("claude -p x", seen(30), True),
    ],
)
def test_what_counts(argv: str, process: e.AgentProcess, counts: bool) -> None:
    t = Transcript(program_profile=False, hear=frozenset({"publish"}))
    a = t.start("a", argv=tuple(argv.split()))
    t >> e.AgentSeen(t.at, a, process)
    if counts:
        t << "publish unadmitted a1"
    t.quiet()
    assert (t.run(a).admitted, t.run(a).seen.unadmitted) == (counts, counts)


def test_it_counts_once_against_the_budget_of_the_run_and_its_ancestors_for_good() -> None:
    t = Transcript(program_profile=False)
    a, b = t.chain("a", "b", max_descendants=bound(3))
    assert counted(t, b, seen())
    assert t.changed == {a, b}
    assert not counted(t, b, seen())
    assert counted(t, b, seen()._replace(started=8))  # another process with its pid
    assert (t.run(a).admitted, t.run(b).admitted, t.run(a).seen.unadmitted) == (3, 2, 0)
    assert t.refused("c", inside(a)).kind == "budget"


@pytest.mark.parametrize("when", ["off", "stopping", "ended"])
def test_nothing_is_counted(when: str) -> None:
    t = Transcript(program_profile=False, unadmitted="off" if when == "off" else "terminate")
    a = t.start("a")
    if when != "off":
        (t >> t.stop(a)).skip()
    if when == "ended":
        (t >> t.emptied(a)).skip()
    t >> e.AgentSeen(t.at, a, seen())
    t.quiet()


def test_a_warning_tells_program_process_command_and_depth() -> None:
    t = Transcript(program_profile=False)
    _, b = t.chain("a", "b")
    events = [
        event for process in (seen(20), seen(30, None, None)) if (event := told(t, b, process))
    ]
    first, second = events
    assert (first.severity, first.action, first.program, first.pid, first.command, first.depth) == (
        "medium", "warn", "claude", 20, "claude -p x", 2,
    )  # fmt: skip
    assert first.message == (
        "'claude' (process 20) was started within run a2 ('b') without asking the daemon: "
        "claude -p x; it counts as a descendant (1 of 64); to have it ask: "
        "sfactl shim install claude, or start it with sfactl run"
    )
    nested = seen(30)._replace(above=((29, None), (20, "claude"), (MAIN, None)))
    assert second.depth == 2
    assert (third := told(t, b, nested._replace(pid=31))) is not None
    assert third.depth == 3


def told(t: Transcript, run: str, process: e.AgentProcess) -> Event | None:
    """Return the event that follows."""
    commands = t.machine.handle(e.AgentSeen(t.at, run, process)).commands
    published = (command for command in commands if isinstance(command, c.Publish))
    return next((command.event for command in published), None)


def test_terminate_ends_the_run_with_the_reason() -> None:
    t = Transcript(program_profile=False, unadmitted="terminate", hear=frozenset({"publish"}))
    a = t.start("a")
    (
        t
        >> e.AgentSeen(t.at, a, seen())
        << "publish unadmitted a1"
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
    )
    run = t.run(a)
    (t >> t.exited(a, 0)).skip()
    assert run.status is Status.FAILED
    reason = t.reasons[a]
    assert reason is not None
    assert (reason.kind, reason.limit_kind) == ("limit", "unadmitted")
    assert (
        'it counts as a descendant (1 of 64); guard.unadmitted = "terminate" ends the run; to '
        "have it ask: "
    ) in reason.message


def test_a_bomb_is_counted_and_told_a_few_times() -> None:
    t = Transcript(program_profile=False)
    a = t.start("a")
    events = [told(t, a, seen(100 + n)) for n in range(1000)]
    assert t.run(a).seen.unadmitted == t.run(a).admitted == 1000
    assert len(t.run(a).seen.started) == 256
    assert len([event for event in events if event]) == 16 + 5  # 32, 64, …, 512


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(11, 14), st.integers(1, 2)), max_size=30))
def test_each_process_counts_once_for_each_run_above_it(times: list[tuple[int, int, int]]) -> None:
    t = Transcript(program_profile=False)
    runs = t.chain("a", "b", "c")
    last: dict[tuple[int, int], int] = {}
    expected = [0, 0, 0]
    for at, pid, started in times:
        new = last.get((at, pid)) != started
        last[at, pid] = started
        assert counted(t, runs[at], seen(pid)._replace(started=started)) == new
        expected[at] += new
    for at, run in enumerate(runs):
        assert t.run(run).seen.unadmitted == expected[at]
        assert t.run(run).admitted == sum(expected[at:]) + 2 - at


def test_its_session_is_read_again_by_the_next_daemon_but_not_that_of_the_runs_program() -> None:
    t = Transcript(program_profile=False, hear=frozenset({"meter"}))
    a = t.start("a", argv=("claude",))
    for _ in range(2):
        t >> e.AgentSeen(t.at, a, seen(30, None, "claude")) << f"meter {a} claude"
        t.quiet()
    t >> e.AgentSeen(t.at, a, seen(MAIN, is_main=True))
    t.quiet()
