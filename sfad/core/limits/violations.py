"""What agents do around the rules: programs that they start without asking, use past the gateway,
tools that are not theirs."""

from msgspec import Struct

from ...protocol.event_types import EventType
from ...protocol.known import HOW_TO_ASK
from ...protocol.texts.units import format_size
from ...protocol.types import Action, Event, LimitKind, Reason, Source, Status
from .. import commands as c
from .. import events as e
from ..context import Context
from ..life.spending import Spending
from ..life.stopping import Stopping
from ..state.account import NOTHING
from ..state.limits import NEED_COUNTING
from ..state.naming import program_name
from ..state.request import name_of
from ..state.run import Run
from ..state.tree import typed_bounds
from ..state.vocabulary import ReasonKind
from .enforcement import LimitEnforcement

# ---- Agent programs that were started within a run without asking the daemon (docs/guard.md)
#
# The guard cannot refuse them any more. Each counts as a descendant, for good: the budget is of
# starts, not of what is alive.


_REMEMBERED = 256
"""Processes of one run that are known to be counted. One that is forgotten while it is alive may be
counted once more, by the next daemon."""
_EACH_TOLD = 16
"""Unadmitted agents of one run that are published one by one; then only when they have doubled."""


class Unadmitted(Struct, frozen=True):
    _ctx: Context
    _stopping: Stopping

    def agent_seen(self, run: Run, ev: e.AgentSeen) -> None:
        policy, process = self._ctx.policy.guard.unadmitted, ev.process
        if policy == "off" or run.status is Status.STOPPING or _asked_for(run, process):
            return
        # also of one that an earlier daemon has counted
        self._ctx.do(c.MeterAgent(run.id, process))
        if _counted(run, process):
            return
        depth = len(run.ancestors) + 1 + sum(pid in run.seen.started for pid, _ in process.above)
        self._count(run, process)
        message = (
            f"'{process.program}' (process {process.pid}) was started within run "
            f"{run.id} ('{run.name}') without asking the daemon: {process.command}; "
            f"it counts as a descendant ({run.admitted} of {run.birth.max_descendants.value})"
        )
        advice = HOW_TO_ASK.format(process.program)
        if (
            policy == "terminate"
            or run.seen.unadmitted <= _EACH_TOLD
            or run.seen.unadmitted.bit_count() == 1
        ):
            event = Event(
                type=EventType.UNADMITTED, severity="medium", message=f"{message}; {advice}",
                action=Action(policy), program=process.program, pid=process.pid,
                command=process.command, depth=depth,
            )  # fmt: skip
            self._ctx.publish_event(event, run)
        if policy == "terminate":
            why = f'{message}; guard.unadmitted = "terminate" ends the run; {advice}'
            self._stopping.stop_for(
                run, Reason(kind=ReasonKind.LIMIT, message=why, limit_kind="unadmitted"), ev.at
            )

    def _count(self, run: Run, process: e.AgentProcess) -> None:
        run.seen.unadmitted += 1
        run.seen.started.pop(process.pid, None)
        run.seen.started[process.pid] = process.started
        if len(run.seen.started) > _REMEMBERED:
            del run.seen.started[next(iter(run.seen.started))]
        for each in run.lineage:
            each.admitted += 1
            self._ctx.changed(each)


def _counted(run: Run, process: e.AgentProcess) -> bool:
    return run.seen.started.get(process.pid) == process.started


def _asked_for(run: Run, process: e.AgentProcess) -> bool:
    """Return whether it is the run's own program, or a part of an agent that was counted before.

    A program that executes itself again, or starts a helper of its own, leaves it in its own
    process group. An agent gives each command of its shell tool a group, to end it, and a shell
    executes its last command in its own place: so `bash -c "codex …"` in Codex has Codex for its
    parent too. Background processes of the program itself have groups of their own, too, and a
    command of their own."""
    if process.is_main:
        return True
    if process.is_part:
        return True
    own = process.below_main and program_name(run.asked.shown.argv) == process.program
    return own and all(program != process.program for _, program in process.above)


# ---- Use that went around the gateway (docs/gateway.md): what a run's stream or session file tells
# beyond the calls that it saw, and connections to a model that have carried a call.
#
# A run that has the gateway can leave it: with an address of its own, a cleared environment, a
# provider that the gateway does not know. Then its limits rest on figures that come after the
# calls.


_FACTOR, _MORE = 2, 20_000
"""So many times the tokens that the gateway saw, and so many more, are no error of counting: a
resumed session may tell of older turns, and a program of calls that were tried twice."""
_OWN_WORD: tuple[Source, ...] = ("report", "stream")
_WHERE: dict[Source, str] = {"session": "its session file", "stream": "its output"}


class Bypasses(Struct, frozen=True):
    _ctx: Context
    _spending: Spending
    _limits: LimitEnforcement
    _stopping: Stopping

    def look(self, run: Run, at: float) -> None:
        """Compare what the sources tell, because one of them tells more."""
        for source, where in _WHERE.items():
            tokens = _tokens(run, source)
            if tokens and _may_go_around(run, source):
                seen, around = _seen(run), _tokens(run, "around") if source == "session" else 0
                most = _FACTOR * seen + _MORE if seen is not None else 0
                if around or tokens > most:
                    self._tell(
                        run,
                        source,
                        f"{where} tells of {around or tokens} tokens, and the gateway saw "
                        + ("none of them" if around else str(seen or "none")),
                        at,
                    )
                    return

    def model_reached(self, run: Run, ev: e.ModelReached) -> None:
        """Take what a connection has carried for a call."""
        if _may_go_around(run, "connection"):
            runs = f"'{ev.program}' runs in it, " if ev.program else ""
            found = (
                f"{runs}it has a connection to {ev.api}, on which {format_size(ev.sent)} were sent "
                "and answered"
            )
            self._tell(run, "connection", found, ev.at)

    def _tell(self, run: Run, cause: str, found: str, at: float) -> None:
        for each in run.lineage:
            each.seen.bypassed.add(cause if each is run else "below")
            self._ctx.changed(each)
        self._spending.note_around(run)
        message = (
            f"it calls its model around the gateway: {found}. So its limits are kept after its "
            "calls, not before them; docs/gateway.md says what leads around it. If it shall go "
            "around it, start it with --no-gateway"
        )
        self._ctx.publish(EventType.GATEWAY_BYPASSED, run, message, "high")
        _end_if_bound(self._ctx, self._stopping, run, message, at)
        self._limits.enforce(run, at)  # estimates count now


def _end_if_bound(ctx: Context, stopping: Stopping, run: Run, message: str, at: float) -> None:
    """End a run whose limits cannot be kept, if `gateway.bypass` says so. `message`: why."""
    if run.status is Status.STOPPING:
        return
    if ctx.policy.bypass == "terminate" or (ctx.policy.bypass == "auto" and any(typed_bounds(run))):
        kind = next((kind for kind in NEED_COUNTING if kind in run.limits), LimitKind.COST)
        why = (
            f"{message}; gateway.bypass ends such a run where a person has set a limit of "
            "cost or tokens"
        )
        stopping.stop_for(run, Reason(kind=ReasonKind.LIMIT, message=why, limit_kind=kind), at)


def _may_go_around(run: Run, cause: str) -> bool:
    """Return whether this is not known of the run yet. An agent that tells its use for sfad is
    metered, not astray; the session file of another program within it may tell more."""
    if _meters_itself(run) and cause != "session":
        return False
    return run.asked.sources.gated and cause not in run.seen.bypassed


def _meters_itself(run: Run) -> bool:
    """Return whether its agent tells what it uses by a way that sfad offers, whatever leads to its
    model."""
    return run.asked.sources.tells_each_call or run.asked.sources.reports


def _tokens(run: Run, source: Source) -> int:
    return run.account.sources.get(source, NOTHING).tokens or 0


def _seen(run: Run) -> int | None:
    """Return the tokens of the run's calls that the gateway saw, or that an agent has told which
    meters itself; `None` if there was none. What runs below it use is part of that, because a run's
    output holds what a program prints that its script starts."""
    seen, below = run.account.seen_by_gateway, run.account.below.get(LimitKind.TOKENS, 0)
    if _meters_itself(run):
        told = [run.account.sources.get(source, NOTHING).tokens for source in _OWN_WORD]
        seen = max((each for each in (seen, *told) if each is not None), default=None)
    return None if seen is None and not below else (seen or 0) + below


# ---- Work that an agent program hands to a server of its own, outside of the run's tree: nothing
# there is limited, counted or ended with the run


_HAND_OFFS_TOLD = 16
"""Different ones of one run that are published."""


class HandOffs(Struct, frozen=True):
    _ctx: Context
    _stopping: Stopping

    def seen(self, run: Run, ev: e.HandedOff) -> None:
        if (
            run.status is Status.STOPPING
            or ev.what in run.seen.handed_off
            or len(run.seen.handed_off) >= _HAND_OFFS_TOLD
        ):
            return
        run.seen.handed_off.add(ev.what)
        self._ctx.changed(run)
        message = (
            f"'{ev.program}' hands work to a server outside of the run: {ev.what}. There it has no "
            "limits, is on no bill, and does not end with the run; docs/guard.md says how a "
            "program gets a background task within its run"
        )
        self._ctx.publish(EventType.HANDED_OFF, run, message, "high")
        _end_if_bound(self._ctx, self._stopping, run, message, ev.at)


# ---- Tools that a run may not use: `--allow-tool` and `--block-tool`


MAX_TOOLS_SAID = 16
"""Forbidden tools of one run that are published."""


class ToolRules(Struct, frozen=True):
    _ctx: Context
    _stopping: Stopping

    def tools_called(self, run: Run, ev: e.ToolsCalled) -> None:
        for tool in ev.tools:
            if run.status is Status.STOPPING:
                return
            forbidden = _forbidden(run, tool)
            if (
                forbidden is not None
                and tool not in run.tools_said
                and len(run.tools_said) < MAX_TOOLS_SAID
            ):
                run.tools_said.add(tool)
                self._ctx.changed(run)
                self._forbid(run, f"its agent called the tool '{tool}', {forbidden}", ev.at)

    def _forbid(self, run: Run, message: str, at: float) -> None:
        event = Event(
            type=EventType.LIMIT_EXCEEDED, severity="medium", message=message, scope="run",
            limit_kind="tool", threshold=0, used=1, exceeded_by=1,
        )  # fmt: skip
        self._ctx.publish_event(event, run)
        if run.asked.terms.on_limit is not Action.WARN:
            self._stopping.stop_for(
                run, Reason(kind=ReasonKind.LIMIT, message=message, limit_kind="tool"), at
            )


def _forbidden(run: Run, tool: str) -> str | None:
    """Return why the run may not use a tool. The agent itself keeps a pattern such as
    `Bash(git:*)`; here its name counts."""
    blocked = {name for name in run.asked.terms.blocked_tools if "(" not in name}
    allowed = {name_of(tool) for tool in run.asked.terms.allowed_tools}
    if tool in blocked:
        return "which --block-tool forbids"
    return "which --allow-tool does not name" if allowed and tool not in allowed else None
