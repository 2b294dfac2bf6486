"""The options and arguments that verbs share, and what their texts mean.

An alias declares a parameter of a verb once: `def pause(runs: LiveRuns, json: Json = False)`. typer
calls its parser, so a verb receives values.
"""

import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from datetime import time as clock_time
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import typer

from sfad.protocol.types import Action, Limit, Status
from sfad.protocol.units import (
    MOST_WHOLE,
    parse_count,
    parse_duration,
    parse_size,
    parse_usd,
    parse_whole,
)

T = TypeVar("T")

WITHOUT_VALUE = {"--isolate": "on", "--worktree": "-"}
"""What an option means without `=VALUE`. It then takes no word after it."""


class Pair(NamedTuple):
    """`K=V`."""

    key: str
    value: str


class Tail(NamedTuple):
    """The last lines or bytes of an output."""

    amount: int
    lines: bool


class LimitsObject(list[Limit]):
    """The limits of a JSON object."""


class Words(list[str]):
    """What one text names, with commas between them."""

    def __init__(self, text: str) -> None:
        super().__init__(word for word in text.split(",") if word)


# ---- Parsers: the value of a text


def reader(read: Callable[..., T], *arguments: Any) -> Callable[[str], T]:
    """Return a parser for typer. The `ValueError` of `read` becomes the error about the option."""

    def parser(text: Any) -> T:
        if not isinstance(text, str):  # typer parses a default too
            return cast(T, text)
        try:
            return read(text, *arguments)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parser


def one_of(words: Iterable[str], kind: str) -> Callable[[str], str]:
    """Return a parser that takes only these words. `kind`: what a word is."""
    known = list(words)

    def read(text: str) -> str:
        if text not in known:
            raise ValueError(f"unknown {kind} {text!r}; choose from: {', '.join(known)}")
        return text

    return reader(read)


def either(one: str, other: str) -> Callable[[str], str]:
    """Return a parser that takes only these two words."""

    def read(text: str) -> str:
        if text not in (one, other):
            raise ValueError(f"{text!r} is neither {one} nor {other}")
        return text

    return reader(read)


def pair(text: str) -> Pair:
    """Return key and value of `K=V`. Raise `ValueError`."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError(f"{text[:80]!r} is not of the form K=V")
    return Pair(key, value)


def tail(text: str) -> Tail:
    """Return what `20` (lines) or `4096B` means. Raise `ValueError`."""
    try:
        lines = text.isascii() and text.isdecimal()
        return Tail(int(text) if lines else parse_size(text), lines)
    except ValueError:
        raise ValueError(
            f"{text[:80]!r} is neither a number of lines (20) nor a size (4096B, 64KiB, 1M)"
        ) from None


def moment(text: str, now: float | None = None) -> float:
    """Return Unix seconds: of a duration before now, or of a time, which is local if it has no
    zone. Raise `ValueError`."""
    now = time.time() if now is None else now
    for read in (_clock, _date, _ago):
        try:
            return read(text, now)
        except ValueError:
            pass
    forms = (
        "a time (2026-01-31T22:00, 22:00, yesterday, yesterday 22:00) nor a duration (90s, 12h, 7d)"
    )
    raise ValueError(f"{text!r} is neither {forms}")


def _clock(text: str, unix_now: float) -> float:
    """Return when a clock last showed `22:00`, or the time of `yesterday 22:00`; a day alone means
    its beginning."""
    now, days = datetime.fromtimestamp(unix_now), {"today": 0, "yesterday": 1}
    day, _, clock = text.rpartition(" ") if text not in days else (text, "", "00:00")
    if day not in {*days, ""}:
        raise ValueError(f"not a day: {day}")
    found = datetime.combine(now, clock_time.fromisoformat(clock))
    if found.tzinfo is not None:
        raise ValueError(f"a zone without a date: {clock}")
    return (found - timedelta(days=days.get(day, int(found > now)))).timestamp()


def _date(text: str, _now: float) -> float:
    return datetime.fromisoformat(text).timestamp()


def _ago(text: str, now: float) -> float:
    return now - parse_duration(text)


def _status(text: str) -> Status:
    return Status(STATUS(text))


def read_limit(text: str) -> Limit:
    """Return `KIND=N` or `KIND=N:ACTION` as a limit. Raise `UsageError`, which names the option."""
    from . import limits  # many runs have no such option

    return limits.of_flag(text)


def read_limits(text: str) -> LimitsObject:
    """Return the limits of a JSON object, or of a file with one, named behind `@`. Raise
    `UsageError`."""
    from . import limits

    return LimitsObject(limits.of_object(text))


def read_action(text: str) -> Action:
    """Return an action of limits. Raise `ValueError`."""
    from sfad.protocol.limits import parse_action

    return parse_action(text)


STATUS = one_of(Status, "status")
DURATION, COUNT, WHOLE = (
    reader(parse_duration),
    reader(parse_whole, 0, MOST_WHOLE),
    reader(parse_whole),
)
AMOUNT, USD, MOMENT, PAIR = reader(parse_count), reader(parse_usd), reader(moment), reader(pair)
TAIL = reader(tail)


# ---- Completion


def completing(kind: str) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """Return what completes the words of a kind of `shell_completion.CANDIDATES`."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        from .shell_completion import candidates  # needed for no other command line

        return candidates(kind, incomplete, ctx.params.get("socket"))

    return complete


# ---- Options


def _or_before_verb(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Return the value of an option, or what stands before the verb, where all verbs have it."""
    return value or ctx.find_root().params.get(param.name or "") or value


_SOCKET_HELP = "The daemon's socket (default: SFA_SOCKET, SFAD_SOCKET, the user's, the system's)"

RootSocket = Annotated[str | None, typer.Option("--socket", metavar="PATH", help=_SOCKET_HELP)]
RootJson = Annotated[bool, typer.Option("--json", hidden=True)]
Socket = Annotated[
    str | None,
    typer.Option("--socket", metavar="PATH", help=_SOCKET_HELP, callback=_or_before_verb),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print JSON on stdout; notes stay on stderr", callback=_or_before_verb
    ),
]

_RUNS = "Ids, names, or unique prefixes of ids"
Runs = Annotated[
    list[str], typer.Argument(metavar="RUN", help=_RUNS, autocompletion=completing("run"))
]
LiveRuns = Annotated[
    list[str], typer.Argument(metavar="RUN", help=_RUNS, autocompletion=completing("live"))
]
_RUN = "Id, name, or unique prefix of an id"
Run = Annotated[str, typer.Argument(metavar="RUN", help=_RUN, autocompletion=completing("run"))]
LiveRun = Annotated[
    str, typer.Argument(metavar="RUN", help=_RUN, autocompletion=completing("live"))
]
MaybeRun = Annotated[
    str | None, typer.Argument(metavar="RUN", help=_RUN, autocompletion=completing("run"))
]

Names = Annotated[
    list[str],
    typer.Option(
        "--name", metavar="NAME", help="Only runs of this name", autocompletion=completing("name")
    ),
]
LiveNames = Annotated[
    list[str],
    typer.Option(
        "--name", metavar="NAME", help="Live runs of this name", autocompletion=completing("name")
    ),
]
Labels = Annotated[
    list[Pair],
    typer.Option(
        "--label",
        metavar="K=V",
        help="Only runs with this label; several values of a key match any of them",
        parser=PAIR,
        autocompletion=completing("label"),
    ),
]
LiveLabels = Annotated[
    list[Pair],
    typer.Option(
        "--label",
        metavar="K=V",
        help="Live runs with this label; several values of a key match any of them",
        parser=PAIR,
        autocompletion=completing("label"),
    ),
]
User = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="USER", help="Only this user's runs", autocompletion=completing("user")
    ),
]
AllLive = Annotated[bool, typer.Option("--all", help="Every live run that you may see")]
AllListed = Annotated[bool, typer.Option("--all", help="The live runs and the last 50 that ended")]
Statuses = Annotated[
    list[Status],
    typer.Option(
        "--status",
        metavar="STATUS",
        help="Only runs with this status",
        parser=_status,
        autocompletion=completing("status"),
    ),
]
NewLimits = Annotated[
    list[Limit],
    typer.Option(
        "--limit",
        metavar="KIND=N",
        help="New limit, from the start of the run: turns=50, cost=2.50, tokens=200k, …",
        parser=read_limit,
        autocompletion=completing("kind of limit"),
    ),
]
"""For verbs that give a run more room."""
