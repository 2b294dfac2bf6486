"""Tools that a run may not use: `--allow-tool` and `--block-tool`."""

from dataclasses import dataclass

from ..protocol.types import Action, Reason, Status
from . import events as e
from .context import Context, Facts
from .run import Run
from .stopping import Stopping
from .tool_lists import name_of
from .vocabulary import EventType, ReasonKind

MAX_TOOLS_SAID = 16
"""Forbidden tools of one run that are published."""


@dataclass(frozen=True, slots=True)
class ToolRules:
    _ctx: Context
    _stopping: Stopping

    def tools_called(self, run: Run, ev: e.ToolsCalled) -> None:
        for tool in ev.tools:
            if run.status is Status.STOPPING:
                return
            forbidden = _forbidden(run, tool)
            if forbidden is not None and tool not in run.tools_said and len(run.tools_said) < MAX_TOOLS_SAID:
                run.tools_said.add(tool)
                self._ctx.changed(run)
                self._forbid(run, f"its agent called the tool '{tool}', {forbidden}", ev.at)

    def _forbid(self, run: Run, message: str, at: float) -> None:
        facts = Facts(scope="run", limit_kind="tool", threshold=0, used=1, exceeded_by=1)
        self._ctx.publish(EventType.LIMIT_EXCEEDED, run, message, "medium", **facts)
        if run.asked.on_limit is not Action.WARN:
            self._stopping.stop_for(run, Reason(kind=ReasonKind.LIMIT, message=message, limit_kind="tool"), at)


def _forbidden(run: Run, tool: str) -> str | None:
    """Return why the run may not use a tool. The agent itself keeps a pattern such as `Bash(git:*)`; here its name counts."""
    blocked = {name for name in run.asked.blocked_tools if "(" not in name}
    allowed = {name_of(tool) for tool in run.asked.allowed_tools}
    if tool in blocked:
        return "which --block-tool forbids"
    return "which --allow-tool does not name" if allowed and tool not in allowed else None
