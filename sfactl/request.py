"""Command line and environment → the `Spawn` message. The options of `spawn` and `run` (SPEC section 15)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, cast

from sfad.protocol.messages import Spawn
from sfad.protocol.types import Kind

from . import environment
from .exits import Exit, Quit, UsageError
from .options import COMMON, Argument, Option, Parameter

LATER = (
    Option(("--meter",), "meter", "", "M", hidden=True),
    Option(("--limits",), "limits", "", "JSON", hidden=True),
    Option(("--on-limit",), "on_limit", "", "ACTION", hidden=True),
    Option(("--on-end",), "on_end", "", "CMD", hidden=True),
    Option(("--isolate",), "isolate", "", "WHAT", hidden=True),
    Option(("--nested",), "nested", "", hidden=True),
)
"""Options of later releases. Refused, because a bound that is silently not kept is worse than none."""

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    Argument("agent", "AGENT", "A registered agent (not in this release)", required=False, hidden=True),
    Option(("--name",), "name", "Who the run is: what the loop rule compares; else derived from the command", "NAME"),
    Option(("--kind",), "kind", "agent (default) or skill", "KIND"),
    Option(("--type",), "type", "A label for the kind of work, shown in lists", "TYPE"),
    Option(("--timeout",), "timeout", "Seconds until the run is stopped; 90, 90s, 5m, 1h (SFA_DEFAULTS_TIMEOUT)", "TIME"),
    Option(("--limit",), "limit", "time=90s: the same as --timeout; other kinds are not in this release", "KIND=N", many=True),
    Option(("--max-depth",), "max_depth", "Runs in a chain, counted from the root; 0 inherits (SFA_MAX_DEPTH)", "N"),
    Option(("--max-descendants",), "max_descendants", "Runs below this one; 0 inherits (SFA_MAX_DESCENDANTS)", "N"),
    Option(("--attempts",), "attempts", "Start it at most this often if it fails", "N"),
    Option(("--retry-delay",), "retry_delay", "Before the second attempt; doubles each time", "TIME"),
    Option(("--cwd",), "cwd", "Where the command runs; else here", "DIR"),
    Option(("--env",), "env", "Set a variable in the run's environment", "K=V", many=True),
    Option(("--wait", "-w"), "wait", "Stay in the foreground, as `run` does"),
    Option(("--keep",), "keep", "Let the run go on if this client dies"),
    Option(("--detach",), "detach", "Start a new root instead of a child, where the config allows it"),
    Option(("--leaf",), "leaf", "The run may not start others"),
    Option(("--stdin",), "stdin", "Keep the run's stdin open for `sfactl send`"),
    Option(("--stdio",), "stdio", "inherit: the run gets this client's own stdin, stdout, stderr; nothing is kept", "HOW"),
    Option(("--quiet", "-q"), "quiet", "No progress lines (SFA_QUIET)"),
    Option(("--verbose", "-v"), "verbose", "Every event of the run on stderr"),
    Option(("--no-log",), "no_log", "Keep no output (SFA_NO_LOG)"),
    Option(("--no-queue",), "no_queue", "Be refused rather than wait for a slot"),
    Option(("--priority",), "priority", "Higher starts first from the queue", "N"),
    Option(("--grace",), "grace", "Between the stop signal and SIGKILL, at most 60 s", "TIME"),
    Option(("--label",), "label", "Groups runs for list and stop", "K=V", many=True),
    Option(("--channel",), "channel", "Where the request comes from; shown in events", "NAME"),
    Option(("--allow",), "allow", "A verb the run may use; once given, no other", "VERB", many=True),
    Option(("--deny",), "deny", "A verb the run may not use", "VERB", many=True),
    Option(("--allow-tool",), "allow_tool", "Told to the agent in SFA_ALLOWED_TOOLS", "TOOL", many=True),
    Option(("--block-tool",), "block_tool", "Told to the agent in SFA_BLOCKED_TOOLS", "TOOL", many=True),
    Option(("--status-file",), "status_file", "Receives the final run as JSON", "PATH"),
    *LATER,
)


class Wanted(NamedTuple):
    """The command line of `spawn` or `run`, as text."""

    command: list[str]
    socket: str | None = None
    json: bool = False
    agent: str | None = None
    name: str | None = None
    kind: str = "agent"
    type: str | None = None
    timeout: str | None = None
    limit: Sequence[str] = ()
    max_depth: str | None = None
    max_descendants: str | None = None
    attempts: str | None = None
    retry_delay: str | None = None
    cwd: str | None = None
    env: Sequence[str] = ()
    wait: bool = False
    keep: bool = False
    detach: bool = False
    leaf: bool = False
    stdin: bool = False
    stdio: str | None = None
    quiet: bool = False
    verbose: bool = False
    no_log: bool = False
    no_queue: bool = False
    priority: str | None = None
    grace: str | None = None
    label: Sequence[str] = ()
    channel: str | None = None
    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    allow_tool: Sequence[str] = ()
    block_tool: Sequence[str] = ()
    status_file: str | None = None
    meter: str | None = None
    limits: str | None = None
    on_limit: str | None = None
    on_end: str | None = None
    isolate: str | None = None
    nested: bool = False


def check(wanted: Wanted) -> None:
    """Raises `UsageError` for what cannot be meant, or is not in this release."""
    for option in LATER:
        if getattr(wanted, option.target):
            raise UsageError(f"{option.flags[0]} is not in this release")
    if wanted.agent is not None:
        raise UsageError(
            f"{wanted.agent!r} before '--' would name a registered agent; those are not in this release. "
            f"Write the command after '--': -- {wanted.agent} …"
        )
    if not wanted.command:
        raise UsageError("no command: write it after '--', as in: -- claude -p 'look at HEAD~1'")
    if wanted.kind not in ("agent", "skill"):
        raise UsageError(f"--kind: {wanted.kind!r} is neither agent nor skill")
    if wanted.stdio not in (None, "files", "inherit"):
        raise UsageError(f"--stdio: {wanted.stdio!r} is neither files nor inherit")
    if wanted.stdio == "inherit" and wanted.stdin:
        raise UsageError("--stdin and --stdio inherit exclude each other: the run has one stdin")


def message(wanted: Wanted, request_id: int, environ: Mapping[str, str] = os.environ) -> Spawn:
    """The `Spawn` for a checked command line, in the background: `foreground` ties it and passes descriptors."""
    timeout, source = _timeout(wanted, environ)
    inherit: Literal["files", "inherit"] = "inherit" if wanted.stdio == "inherit" else "files"
    return Spawn(
        id=request_id,
        argv=[os.fsencode(word) for word in wanted.command],
        cwd=_cwd(wanted.cwd),
        env=_environment(wanted.env),
        umask=_umask(),
        name=wanted.name,
        kind=cast(Kind, wanted.kind),
        run_type=wanted.type,
        timeout=timeout,
        timeout_source=source,
        max_depth=environment.bound("--max-depth", wanted.max_depth, "SFA_MAX_DEPTH", environ),
        max_descendants=environment.bound("--max-descendants", wanted.max_descendants, "SFA_MAX_DESCENDANTS", environ),
        attempts=_whole("--attempts", wanted.attempts, 1, least=1),
        retry_delay=_seconds("--retry-delay", wanted.retry_delay),
        grace=_seconds("--grace", wanted.grace),
        detach=wanted.detach,
        leaf=wanted.leaf,
        queue=not wanted.no_queue,
        priority=_whole("--priority", wanted.priority, 0),
        log=not (wanted.no_log or environment.flag("SFA_NO_LOG", environ)),
        quiet=wanted.quiet or environment.flag("SFA_QUIET", environ),
        stdin="pipe" if wanted.stdin else "null",
        stdio=inherit,
        labels=pairs("--label", wanted.label),
        channel=wanted.channel,
        allow=_words(wanted.allow),
        deny=_words(wanted.deny),
        allowed_tools=list(wanted.allow_tool),
        blocked_tools=list(wanted.block_tool),
        claim=environment.claim(environ),
    )


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """`K=V` texts as a dict. Raises `UsageError`."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError(f"{option}: {text!r} is not of the form K=V")
        found[key] = value
    return found


def _words(given: Sequence[str]) -> list[str]:
    return [word for text in given for word in text.split(",") if word]


def _timeout(wanted: Wanted, environ: Mapping[str, str]) -> tuple[float | None, str]:
    by_limit = [_time_limit(text) for text in wanted.limit]
    if len(by_limit) + (wanted.timeout is not None) > 1:
        raise UsageError("the time limit is given more than once")
    if wanted.timeout is not None:
        return environment.duration("--timeout", wanted.timeout), "--timeout"
    if by_limit:
        return by_limit[0], "--limit time"
    text = environ.get("SFA_DEFAULTS_TIMEOUT", "")
    if text.strip():
        return environment.duration("SFA_DEFAULTS_TIMEOUT", text), "SFA_DEFAULTS_TIMEOUT"
    return None, "default"


def _time_limit(text: str) -> float:
    kind, _, rest = text.partition("=")
    amount, _, action = rest.partition(":")
    if kind not in ("time", "wall"):
        raise UsageError(f"--limit: {kind!r} is not in this release, only time is (--limit time=90s)")
    if action not in ("", "terminate"):
        raise UsageError(f"--limit: the action {action!r} is not in this release, only terminate is")
    return environment.duration("--limit time", amount)


def _seconds(option: str, text: str | None) -> float | None:
    return None if text is None else environment.duration(option, text)


def _whole(option: str, text: str | None, default: int, least: int | None = None) -> int:
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise UsageError(f"{option}: {text!r} is not a whole number") from None
    if least is not None and value < least:
        raise UsageError(f"{option}: {value} is less than {least}")
    return value


def _cwd(given: str | None) -> bytes:
    if given is not None and os.path.isabs(given):
        return os.fsencode(given)
    try:
        here = os.getcwdb()
    except FileNotFoundError:
        raise Quit(Exit.NOT_EXECUTABLE, "the current directory does not exist any more; say --cwd DIR") from None
    return here if given is None else os.path.normpath(os.path.join(here, os.fsencode(given)))


def _environment(given: Sequence[str]) -> list[bytes]:
    # As bytes: a value that is not UTF-8, or a name a shell could not write, reaches the run unchanged.
    merged = dict(os.environb)
    for key, value in pairs("--env", given).items():
        merged[os.fsencode(key)] = os.fsencode(value)
    return [key + b"=" + value for key, value in merged.items()]


def _umask() -> int:
    # There is no way to read it but to set it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
