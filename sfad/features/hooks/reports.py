"""Counts hooks that end, and tells of those that fail: each time in the log, by an event at most
once a minute for each hook of the config, and for each user's commands of `--on-end`. Also what a
hook is given."""

from collections.abc import Callable

import msgspec
import trio
from msgspec import Struct

from ...host.counts import Counts
from ...host.log import Log
from ...processes.contained_commands import KEPT, CommandResult
from ...protocol.event_types import EventType
from ...protocol.texts.redaction import redacted_end, redacted_object
from ...protocol.texts.sanitise import clean
from ...protocol.types import Event, RunId, Severity

OUTPUT = KEPT // 4
"""Characters that are shown of what a hook prints: a secret of which a part is shown is found by
its beginning."""
QUIET = 60.0
"""Seconds between two events about one hook. No event about a hook starts a hook."""

COUNTED = "sfad_hook_executions"
"""The metric, by how an execution ended."""

SHOWN = 200
"""Characters of its output in an event."""


class HookLabel(Struct, frozen=True):
    """How a hook is named in the log and in events."""

    name: str
    rate_key: str
    """Of all that share it, one event is told within `QUIET`."""
    run: RunId | None = None
    """The event is of this run, so its user is told."""


class HookReports:
    def __init__(
        self,
        log: Log,
        tell: Callable[[EventType, str, Severity, RunId | None], None],
        counts: Counts,
    ) -> None:
        """`tell` announces an event of a run, or of the daemon."""
        self._log = log
        self._tell = tell
        self._counts = counts
        self._told: dict[str, float] = {}

    def ended(self, hook: HookLabel, result: CommandResult, about: str) -> None:
        self._counts.of_feature(COUNTED, "completed" if result.ok else "failed")
        output = redacted_end(clean(result.output), OUTPUT).strip()
        fields = {
            "hook": hook.name,
            "about": about,
            "elapsed_s": result.elapsed_s,
            "output": output,
        }
        if result.ok:
            self._log.debug("a hook has ended", **fields)
            return
        self._log.warning(f"hook {hook.name} failed: {result.how}", **fields)
        last = output.splitlines()[-1][:SHOWN] if output else ""
        self._tell_sometimes(
            hook,
            f"hook {hook.name} failed for {about}: {result.how}" + (f": {last}" if last else ""),
        )

    def dropped(self, hook: HookLabel, about: str, why: str) -> None:
        self._counts.of_feature(COUNTED, "dropped")
        self._log.warning(
            f"hook {hook.name} is not started for an event: {why}", hook=hook.name, about=about
        )
        self._tell_sometimes(
            hook, f"hook {hook.name} is not started for each event: {why}, beginning with {about}"
        )

    def _tell_sometimes(self, hook: HookLabel, message: str) -> None:
        now = trio.current_time()
        self._told = {name: at for name, at in self._told.items() if now < at + QUIET}
        if hook.rate_key not in self._told:
            self._told[hook.rate_key] = now
            self._tell(EventType.HOOK_FAILED, message, "medium", hook.run)


# ---- What a hook is given: the event as JSON on stdin, and few variables. It gets neither the
# daemon's keys nor those of a run.


_VALUE = 2000
"""Characters of a variable."""


def event_json(event: Event) -> bytes:
    return msgspec.json.encode(redacted_object(msgspec.to_builtins(event))) + b"\n"


def event_variables(event: Event, socket: str) -> list[bytes]:
    shown = redacted_object(msgspec.to_builtins(event))
    names = {"agent_name": "NAME"}
    fields = (
        "type",
        "severity",
        "time",
        "seq",
        "run_id",
        "root_id",
        "agent_name",
        "user",
        "message",
        "state",
    )
    told = {
        f"SFAD_EVENT_{names.get(field, field.upper())}": _one_line(shown.get(field, ""))
        for field in fields
    }
    return [f"{key}={value}".encode() for key, value in ({"SFAD_SOCKET": socket} | told).items()]


def _one_line(value: object) -> str:
    text = str(value if value is not None else "")[:_VALUE]
    return "".join(letter if letter.isprintable() else " " for letter in text)
