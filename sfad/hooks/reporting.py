"""Counts hooks that end, and tells of those that fail: each time in the log, by an event at most once a minute for each hook of
the config, and for each user's commands of `--on-end`."""

from collections.abc import Callable
from dataclasses import dataclass

import trio

from ..observe.counts import Counts
from ..observe.log import Log
from ..protocol.event_types import EventType
from ..protocol.redaction import redacted_end
from ..protocol.sanitise import clean
from ..protocol.types import RunId, Severity
from .processes import OUTPUT, HookResult

QUIET = 60.0
"""Seconds between two events about one hook. No event about a hook starts a hook."""

SHOWN = 200
"""Characters of its output in an event."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What is told of."""

    name: str
    quota: str
    """Of all that share it, one event is told within `QUIET`."""
    run: RunId | None = None
    """The event is of this run, so its user is told."""


class HookReports:
    def __init__(self, log: Log, tell: Callable[[EventType, str, Severity, RunId | None], None], counts: Counts) -> None:
        """`tell` announces an event of a run, or of the daemon."""
        self._log = log
        self._tell = tell
        self._counts = counts
        self._told: dict[str, float] = {}

    def ended(self, hook: Reported, result: HookResult, about: str) -> None:
        self._counts.hook_ended("completed" if result.ok else "failed")
        output = redacted_end(clean(result.output), OUTPUT).strip()
        fields = {"hook": hook.name, "about": about, "elapsed_s": result.elapsed_s, "output": output}
        if result.ok:
            self._log.debug("a hook has ended", **fields)
            return
        self._log.warning(f"hook {hook.name} failed: {result.how}", **fields)
        last = output.splitlines()[-1][:SHOWN] if output else ""
        self._tell_sometimes(hook, f"hook {hook.name} failed for {about}: {result.how}" + (f": {last}" if last else ""))

    def dropped(self, hook: Reported, about: str, why: str) -> None:
        self._counts.hook_ended("dropped")
        self._log.warning(f"hook {hook.name} is not started for an event: {why}", hook=hook.name, about=about)
        self._tell_sometimes(hook, f"hook {hook.name} is not started for each event: {why}, beginning with {about}")

    def _tell_sometimes(self, hook: Reported, message: str) -> None:
        now = trio.current_time()
        self._told = {name: at for name, at in self._told.items() if now < at + QUIET}
        if hook.quota not in self._told:
            self._told[hook.quota] = now
            self._tell(EventType.HOOK_FAILED, message, "medium", hook.run)
