"""Stages: what features have executed in a run beside its command. Which one follows, how their
ends are told, and what an agent is told that is to repair what has failed."""

from collections.abc import Sequence

from msgspec.structs import replace

from ...protocol.checks import MOST_SHOWN, checked, on_one_line
from ...protocol.texts.units import format_elapsed
from ...protocol.types import Check, Reason, Status
from ..state.request import Stage
from ..state.run import ProcessExit, Run, StageEnd
from ..state.vocabulary import signal_name

CANNOT_EXECUTE = frozenset({126, 127})
"""Exit codes by which a shell says that it cannot execute a command."""


def first_stage(run: Run) -> int:
    """Return what the first attempt begins with: a stage, counted from 1, or 0, the command."""
    return int(run.asked.stages[0].before)


def next_stage(run: Run) -> int | None:
    """Return what follows the stage or the command that has just succeeded; `None`: nothing."""
    stages, now = run.asked.stages, run.latest.stage
    after = next((at for at, stage in enumerate(stages, 1) if not stage.before), None)
    if not now:
        return after
    if stages[now - 1].before and now + 1 == (after or len(stages) + 1):
        return 0
    return now + 1 if now < len(stages) else None


def is_checked(run: Run) -> bool:
    """Return whether a stage after the command is executed: one that may be executed again."""
    now = run.latest.stage
    return bool(now) and not run.asked.stages[now - 1].before


def present(run: Run) -> Stage:
    """Return the stage that is executed, or was last."""
    return run.asked.stages[run.latest.stage - 1]


def activity(run: Run) -> str | None:
    """Return what a live run does beside its command: the kind of the stage that is executed, or
    follows next."""
    at = following(run)
    return run.asked.stages[at - 1].kind if at and run.status not in _ENDING else None


def following(run: Run) -> int:
    """Return which stage is executed or follows at once; 0 if that is the command."""
    latest = run.latest
    if latest.next_stage is not None:
        return latest.next_stage
    return 0 if run.status is Status.RETRYING else latest.stage


_OVER = frozenset(status for status in Status if status.terminal)
_ENDING = _OVER | {Status.STOPPING}


def checks_of(run: Run) -> tuple[Check, ...]:
    """Return the stages after the command, with what became of them in the present attempt."""
    if run.remote is not None:
        return tuple(
            replace(each, state="not_run")
            if each.state == "running" and run.status in _OVER
            else each
            for each in run.remote.checks
        )
    ends = {end.stage: end for end in run.latest.ended_stages}
    now = following(run) if run.status not in _ENDING else 0
    return tuple(
        _check(stage, ends.get(number), running=number == now)
        for number, stage in enumerate(run.asked.stages, 1)
        if not stage.before
    )


def _check(stage: Stage, end: StageEnd | None, *, running: bool) -> Check:
    if end is None:
        return Check(command=stage.command, state="running" if running else "not_run")
    return Check(
        command=stage.command,
        state="failed" if end.failed else "passed",
        elapsed_s=round(end.seconds, 3),
        exit_code=end.exit.code if end.exit is not None else None,
        signal=end.exit.signal if end.exit is not None else None,
    )


def told_of_checks(run: Run) -> str:
    """Return `checked: make test, 41s`; empty if nothing was checked."""
    return checked(checks_of(run))


def how_it_failed(exit_: ProcessExit) -> str:
    """Return how a stage has failed, as in `exit code 2`."""
    if exit_.signal is not None:
        return f"killed by {signal_name(exit_.signal)}"
    if exit_.code in CANNOT_EXECUTE:
        why = "not found" if exit_.code == 127 else "not executable"
        return f"exit code {exit_.code}, a command was {why}"
    return f"exit code {exit_.code}"


def failure(stage: Stage, end: StageEnd, lines: Sequence[str]) -> Reason:
    """Return why a stage has failed."""
    what = "the setup" if stage.before else "the check"
    said = f": {lines[-1]}" if lines else ""
    return Reason(
        kind=stage.kind,
        message=f"{what} '{on_one_line(stage.command)}' failed after "
        f"{format_elapsed(end.seconds)}: {end.failed}{said[:MOST_SHOWN]}",
        command=stage.command,
        exit_code=end.exit.code if end.exit is not None else None,
        signal=end.exit.signal if end.exit is not None else None,
        elapsed_s=round(end.seconds, 3),
        lines=list(lines),
    )
