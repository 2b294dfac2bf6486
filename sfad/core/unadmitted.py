"""Agent programs that were started within a run without asking the daemon (docs/guard.md).

The guard cannot refuse them any more. Each counts as a descendant, for good: the budget is of starts, not of what is alive.
"""

from dataclasses import dataclass

from ..protocol.types import Action, Reason, Status
from . import commands as c
from . import events as e
from .context import Context
from .naming import program_name
from .run import Run
from .stopping import Stopping
from .vocabulary import EventType, ReasonKind

_REMEMBERED = 256
"""Processes of one run that are known to be counted. One that is forgotten while it is alive may be counted once more, by the next
daemon."""
_EACH_TOLD = 16
"""Unadmitted agents of one run that are published one by one; then only when they have doubled."""


@dataclass(frozen=True, slots=True)
class Unadmitted:
    _ctx: Context
    _stopping: Stopping

    def agent_seen(self, run: Run, ev: e.AgentSeen) -> None:
        policy, process = self._ctx.policy.unadmitted, ev.process
        if policy == "off" or run.status is Status.STOPPING or _asked_for(run, process):
            return
        self._ctx.do(c.MeterAgent(run.id, process))  # also of one that an earlier daemon has counted
        if _counted(run, process):
            return
        depth = len(run.ancestors) + 1 + sum(pid in run.unadmitted_seen for pid, _ in process.above)
        self._count(run, process)
        message = (
            f"'{process.program}' (process {process.pid}) was started within run {run.id} ('{run.name}') without asking the "
            f"daemon: {process.command}; it counts as a descendant ({run.admitted} of {run.birth.max_descendants.value})"
        )
        advice = f"to have it ask: sfactl shim install {process.program}, or start it with sfactl run"
        if policy == "terminate" or run.unadmitted <= _EACH_TOLD or run.unadmitted.bit_count() == 1:
            self._ctx.publish(
                EventType.UNADMITTED, run, f"{message}; {advice}", "medium",
                action=Action(policy), program=process.program, pid=process.pid, command=process.command, depth=depth,
            )  # fmt: skip
        if policy == "terminate":
            why = f'{message}; guard.unadmitted = "terminate" ends the run; {advice}'
            self._stopping.stop_for(run, Reason(kind=ReasonKind.LIMIT, message=why, limit_kind="unadmitted"), ev.at)

    def _count(self, run: Run, process: e.AgentProcess) -> None:
        run.unadmitted += 1
        run.unadmitted_seen.pop(process.pid, None)
        run.unadmitted_seen[process.pid] = process.started
        if len(run.unadmitted_seen) > _REMEMBERED:
            del run.unadmitted_seen[next(iter(run.unadmitted_seen))]
        for each in run.lineage:
            each.admitted += 1
            self._ctx.changed(each)


def _counted(run: Run, process: e.AgentProcess) -> bool:
    return run.unadmitted_seen.get(process.pid) == process.started


def _asked_for(run: Run, process: e.AgentProcess) -> bool:
    """Return whether it is the run's own program, or a part of an agent that was counted before.

    A program that executes itself again, or starts a helper of its own, leaves it in its own process group. An agent gives each
    command of its shell tool a group, to end it, and a shell executes its last command in its own place: so `bash -c "codex …"`
    in Codex has Codex for its parent too. Background processes of the program itself have groups of their own, too, and a command
    of their own."""
    if process.is_main:
        return True
    if process.above and process.above[0][1] == process.program and (process.serves or not process.own_group):
        return True
    own = process.below_main and program_name(run.asked.argv) == process.program
    return own and all(program != process.program for _, program in process.above)
