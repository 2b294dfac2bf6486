"""An agent whose model asks for the same tool call again and again: `run_repeating`."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..protocol.types import Repetition
from .context import Context, Facts
from .run import Run, Streak
from .vocabulary import EventType


@dataclass(frozen=True, slots=True)
class Repeats:
    _ctx: Context

    def tools_asked_for(self, run: Run, tools: Iterable[tuple[str, str]]) -> None:
        """Count equal tool calls in a row. `tools`: name, and digest of the arguments, in the order of the reply."""
        for name, digest in tools:
            streak = run.streak
            if streak is None or (streak.tool, streak.digest) != (name, digest):
                run.streak = streak = Streak(name, digest)
            streak.count += 1
            if streak.count >= self._ctx.policy.repeats and not streak.said:
                streak.said = True
                self._tell(run, Repetition(tool=name, count=streak.count))

    def _tell(self, run: Run, repetition: Repetition) -> None:
        most = self._ctx.policy.repeats
        facts = Facts(scope="run", limit_kind="repeats", threshold=most, used=repetition.count)
        where = f" in {file}" if (file := self._ctx.policy.files.get("limits.repeats")) else ""
        message = f"{repetition.sentence} (limits.repeats{where} is {most})"
        self._ctx.publish(EventType.RUN_REPEATING, run, message, "high", **facts)
