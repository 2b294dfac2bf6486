"""Printing: JSON on stdout, notes on stderr, and the texts for people of figures, times and the
state of a run."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct

from sfad.protocol.checks import checked
from sfad.protocol.encoding import to_json
from sfad.protocol.holds import HOLDS, UNKNOWN
from sfad.protocol.known import METERED_PROGRAMS
from sfad.protocol.requests.base import Reply
from sfad.protocol.requests.starting import Refused
from sfad.protocol.requests.steering import Stopped
from sfad.protocol.texts.units import counted, format_elapsed, format_short, format_size, format_usd
from sfad.protocol.types import Hold, LimitKind, RunInfo, Status, Survivor, Usage

from . import exits

_ENDLESS = float("inf")


def print_json(value: Any) -> None:
    """Print one JSON object on one line of stdout. A field of a struct that is unknown is null."""
    write(to_json(value) + b"\n")


def answer(json: bool, value: Any, words: str) -> None:
    """Print what a verb has found: as JSON, or in words for people."""
    if json:
        print_json(value)
    else:
        print(words)


def changed(run: RunInfo, json: bool) -> None:
    """Print a run after a verb that changed its state: as JSON on stdout, or its status on
    stderr."""
    if json:
        print_json(run)
    else:
        note(f"{run.id} is {run.status.value}")


def write(data: bytes) -> None:
    """Write bytes to stdout and flush."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def note(message: str) -> None:
    """Print a line on stderr."""
    print(message, file=sys.stderr, flush=True)


def utf8(text: str) -> str:
    """Return a path, or what a file holds, as JSON can have it: a byte that is not UTF-8 as
    `\\xNN`."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def content(reply: Struct) -> dict[str, Any]:
    """Return the fields of a reply without those that each reply has."""
    return {
        field: getattr(reply, field)
        for field in reply.__struct_fields__
        if field not in Reply.__struct_fields__
    }


def plain(text: str) -> str:
    """Return `text` on one line with visible control characters: a run's name or argv must not
    steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\u{ord(c):04x}"
        for c in text
    )


def harmless(text: str) -> str:
    """Return `text` in its lines, with visible control characters."""
    from sfad.protocol.texts.sanitise import visible  # few verbs need it

    return visible(text)


def own_user() -> str:
    """Return the name of this process's user."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def of_others(users: Iterable[str]) -> bool:
    """Return whether one of these is another user than this process's."""
    own = own_user()
    return any(user != own for user in users)


def width(text: str) -> int:
    """Return the terminal columns of printable text."""
    if text.isascii():
        return len(text)
    # combining() is 0 for some of these, such as Devanagari's vowel signs
    shown = (c for c in text if unicodedata.category(c) not in ("Mn", "Me"))
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in shown)


def seconds(value: float | None) -> str:
    """Return a duration for people; `-` if unknown or not finite."""
    return "-" if value is None or not abs(value) < _ENDLESS else format_elapsed(value)


def size(value: int | None) -> str:
    """Return bytes for people; `-` if unknown."""
    return "-" if value is None else format_size(value)


def short(value: int | None) -> str:
    """Return a count in at most five characters; `-` if unknown."""
    return "-" if value is None else format_short(value)


def usd(value: float | None) -> str:
    """Return US dollars for people; `-` if unknown."""
    return "-" if value is None else format_usd(value)


def percent(share: float) -> str:
    """Return `82 %`, never `100 %` of less than all."""
    return f"{min(100 * share, 99) if share < 1 else 100 * share:.0f} %"


class Figure(Protocol):
    """What says of a figure whether it may still grow, or is an upper bound."""

    @property
    def partial(self) -> bool: ...
    @property
    def at_most(self) -> bool: ...


class Use(Figure, Protocol):
    @property
    def tokens(self) -> int | None: ...
    @property
    def cost_usd(self) -> float | None: ...


_MARKS = {
    (False, False): ("", ""),
    (True, False): ("≥", "at least "),
    (False, True): ("≤", "at most "),
    (True, True): ("≈", "about "),
}
"""Of a figure that may still grow, of an upper bound, of both."""


def mark(of: Figure) -> str:
    """Return the sign before a figure; empty for a final one."""
    return _MARKS[of.partial, of.at_most][0]


def bounded(text: str, of: Figure) -> str:
    """Return a figure of a table: `≥0.31` if it may still grow, `≤0.31` if it is an upper bound,
    `≈0.31` if it is an estimate."""
    return f"{mark(of)}{text}" if text != "-" else text


def tokens(of: Use) -> str:
    """Return tokens for a table."""
    return bounded(short(of.tokens), of)


def cost(of: Use) -> str:
    """Return US dollars for a table."""
    return bounded(usd(of.cost_usd), of)


def bound(of: Figure) -> str:
    """Return the same in words, with a space: `at least `; empty for a final figure."""
    return _MARKS[of.partial, of.at_most][1]


def bounded_use(usage: Usage) -> str | None:
    """Return `at least 0.31 USD`, or tokens if the cost is unknown; `None` for final and for
    unknown figures."""
    words, amount = bound(usage), used(usage)
    return f"{words}{amount}" if words and amount else None


def used(usage: Usage) -> str | None:
    """Return `0.31 USD`, or tokens if the cost is unknown; `None` if both are."""
    if usage.cost_usd is not None:
        return f"{format_usd(usage.cost_usd)} USD"
    return None if usage.tokens is None else counted(usage.tokens, "token")


def _now(like: datetime) -> datetime:
    # without the import of `datetime`, which has been imported in part with `like`
    return like.now(like.tzinfo)


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """Return the time since `moment`."""
    if moment is None:
        return "-"
    return seconds(((now or _now(moment)) - moment).total_seconds())


def until(moment: datetime, now: datetime | None = None) -> str:
    """Return the time that is left until `moment`."""
    return seconds(max(0.0, (moment - (now or _now(moment))).total_seconds()))


def local(moment: datetime) -> str:
    """Return a time in the user's zone: `2026-01-31 22:04:05`."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def clock(moment: datetime | None, now: datetime | None = None) -> str:
    """Return a time in the user's zone for a table: `22:04:05` today, `Jan 31 22:04` within a year,
    else `2025-01-31`; `-` if unknown."""
    if moment is None:
        return "-"
    then, today = moment.astimezone(), (now or _now(moment)).astimezone()
    if then.date() == today.date():
        return f"{then:%H:%M:%S}"
    return f"{then:%b %d %H:%M}" if abs((today - then).days) < 365 else f"{then:%Y-%m-%d}"


def command(run: RunInfo) -> str:
    """Return the command line on one line, quoted for a shell."""
    return plain(" ".join(map(shlex.quote, run.argv)))


def meter(run: RunInfo) -> str:
    """Return what tells the use of a run: the gateway, and the meter of its stdout."""
    return (
        ", ".join(
            [*(["gateway"] if run.by_gateway else []), *([plain(run.meter)] if run.meter else [])]
        )
        or "-"
    )


def outcome(run: RunInfo) -> str:
    """Return the status, with the exit code, signal or reason in brackets."""
    if run.reason is not None and run.reason.kind == "no_daemon":
        return f"{run.status.value} (last known)"
    held = [label(hold) for hold in run.holds if hold.blocks != "call"]
    if words := next(filter(None, held), None):
        return f"{run.status.value} ({words})"
    if run.reason is not None and run.reason.limit_kind is not None:
        return f"{run.status.value} (limit {plain(run.reason.limit_kind)})"
    if run.stopped:
        return "stopped (by a signal)"
    if run.activity is not None:
        return f"{run.status.value} ({plain(run.activity)})"
    if run.reason is not None and run.reason.kind in ("check", "setup"):
        return f"{run.status.value} ({run.reason.kind})"
    if run.api_trouble is not None:
        return f"{run.status.value} (API {run.api_trouble.status or 'failing'})"
    if run.api_silence is not None:
        return (
            f"{run.status.value} (waiting "
            f"{age(run.api_silence.since)} for {plain(run.api_silence.host)})"
        )
    if run.holds and (words := label(run.holds[-1])):  # calls that wait
        return f"{run.status.value} ({words})"
    if run.unadmitted:
        return f"{run.status.value} ({run.unadmitted} unadmitted)"
    if unanswered(run):
        return f"{run.status.value} (no answer yet)"
    if run.signal is not None:
        return f"{run.status.value} (signal {run.signal})"
    if run.exit_code:
        return f"{run.status.value} (exit {run.exit_code})"
    return f"{run.status.value} (exit unknown)" if exit_unknown(run) else run.status.value


def label(hold: Hold) -> str:
    """Return why a run waits in two or three words, and the time that is left; empty if its status
    says enough."""
    left = f", {until(hold.until)} left" if hold.until is not None else ""
    words = HOLDS.get(hold.kind, UNKNOWN).label.format(left)
    return f"{words} {hold.limit_kind}" if hold.kind == "limit" else words


def why_held(hold: Hold, now: datetime | None = None) -> str:
    """Return why a run waits, until when, and what a person can do about it."""
    kind, moment = HOLDS.get(hold.kind, UNKNOWN), hold.until
    when = "" if moment is None else f"{clock(moment, now)}, in {until(moment, now)}"
    return kind.told.format(
        words=plain(hold.words),
        until=kind.until.format(when) if when else "",
        command=plain(hold.command or ""),
    )


def why_waits(run: RunInfo, now: datetime | None = None) -> str:
    """Return all that holds a run; empty if nothing does."""
    return "; ".join(why_held(hold, now) for hold in run.holds)


def holding_limit(run: RunInfo) -> LimitKind | None:
    """Return the kind of the limit that holds a run until a person decides."""
    return next((hold.limit_kind for hold in run.holds if hold.limit_kind is not None), None)


def waits_for_approval(run: RunInfo) -> bool:
    """Whether a run is paused until a person approves or denies more of a limit."""
    return any(hold.kind == "approval" for hold in run.holds)


ANSWER_EXPECTED = 30.0
"""Seconds from the start to the first answer of a model, at most, on a machine that is not
overloaded."""


def unanswered(run: RunInfo) -> bool:
    """Whether the model should have answered by now, in an agent that does not report retries."""
    late = (run.usage.elapsed_s or 0.0) >= ANSWER_EXPECTED and not run.usage.messages
    silent = run.meter in METERED_PROGRAMS and METERED_PROGRAMS[run.meter].retries_silently
    return run.status is Status.RUNNING and silent and late


def failure(run: RunInfo, *, own: bool = True) -> str | None:
    """Return the line for stderr that says why a run ended; `None` if it has not ended or
    completed, and without `own` also if it failed with its own exit code."""
    reason = run.reason
    if (
        not run.status.terminal
        or run.status is Status.COMPLETED
        or (not own and reason is not None and reason.kind == "exit")
    ):
        return None
    begun = (
        "could not be started"
        if reason is not None and reason.kind in ("launch", "output")
        else f"ended as {run.status.value}"
    )
    return (
        f"sfactl: {run.id} {begun}: "
        f"{plain(reason.message) if reason is not None else 'no reason was recorded'}"
    )


def why_ended(run: RunInfo) -> str:
    """Return why a run is as it is, what it was checked with, and which children its end has
    stopped; empty if there is nothing to tell."""
    done = run.status is Status.COMPLETED
    told = [each.message for each in (run.reason, run.stopped_children) if each is not None]
    return plain("; ".join(filter(None, (checked(run.checks) if done else "", *told))))


def offer(run: RunInfo) -> str | None:
    """Return how to continue an ended run: it had not done its work, and its agent has a session
    that no run continues yet."""
    undone = run.status in (Status.FAILED, Status.TIMEOUT, Status.LOST, Status.CANCELLED)
    if (
        not undone
        or run.session_id is None
        or run.continued_by is not None
        or run.started_at is None
    ):
        return None
    if run.session:
        return f"continue it: sfactl session send {run.id} MESSAGE"
    return f"continue it: sfactl continue {run.id}"


def refusal(reply: Refused, *, as_json: bool) -> exits.Quit:
    """Return the error that ends the program with 1, or 77 for permission: the message for people
    and models, then the detail. With `as_json` print the refusal on stdout, because scripts read
    all results there."""
    refused = reply.refused
    code = exits.of_refusal(refused)
    if as_json:
        print_json({"refused": refused})
        return exits.StartRefused(refused.kind, code)
    detail = "" if refused.detail in refused.message else plain(refused.detail)
    # the last line is what `why` says of an agent that ends because of this
    told = f"refused: {plain(refused.message)}" + (f"\n  {detail}" if detail else "")
    recorded = f" (recorded as {reply.run})" if reply.run else ""
    return exits.StartRefused(refused.kind, code, told + recorded)


def survivors(found: Sequence[Survivor]) -> str:
    """Return a line for each process that survived SIGKILL, below a heading."""
    lines = [plain(f"  pid {s.pid} of run {s.run_id}: {s.why}") for s in found]
    return "\n".join(
        [f"{counted(len(found), 'process is', 'processes are')} still there after SIGKILL:", *lines]
    )


def stopped(found: Stopped, *, json: bool) -> int:
    """Print the answer to `stop`; return the exit code."""
    if json:
        print_json(content(found))
    else:
        said = plain(", ".join(run for run in found.stopped if run not in found.ended))
        if found.ended:
            note(f"ended before: {plain(', '.join(found.ended))}")
        if said or not (found.survivors or found.ended or found.unreached):
            note(f"stopped: {said} ({seconds(found.elapsed_s)})" if said else "nothing to stop")
        for each in found.unreached:
            note(f"not known to be gone: {plain(each.run_id)}, {plain(each.why)}")
        if found.survivors:
            note(survivors(found.survivors))
    gone = not (found.survivors or found.unreached)
    return exits.ExitCode.DONE if gone else exits.ExitCode.SURVIVORS


def exit_unknown(run: RunInfo) -> bool:
    """Whether the main process ended by itself and its exit status is not known: no daemon was
    running, or the daemon is not its parent."""
    by_itself = run.status in (Status.COMPLETED, Status.FAILED) and (
        run.reason is None or run.reason.kind in _BY_ITSELF
    )
    return by_itself and run.exit_code is None and run.signal is None and run.started_at is not None


_BY_ITSELF = ("exit", "agent", "result")
"""Kinds of reasons for an end that only the agent caused."""


def pause_warning(run: RunInfo) -> str | None:
    """Return a warning for a run that is known to call a model; `None` for another run.

    Measured with Claude Code 2.1 and Codex 0.169: after 240 s in the middle of a reply both
    continue; after 330 s Claude fails and Codex repeats the call."""
    program = os.path.basename(run.argv[0]) if run.argv else ""
    if program not in METERED_PROGRAMS and run.meter not in METERED_PROGRAMS:
        return None
    bill = (
        "the gateway reads and counts it"
        if run.by_gateway
        else "its cost is known after the resume"
    )
    late = (
        "a pause of more than 4 minutes in the middle of a reply makes the agent fail or "
        "repeat the call"
    )
    return f"{run.id}: {late}; the provider goes on with the reply and bills it, and {bill}"
