"""The options and arguments that verbs share, and what their texts mean.

An alias declares a parameter of a verb once: `def pause(runs: LiveRuns, json: Json = False)`. typer
calls its parser, so a verb receives values.
"""

import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from datetime import time as clock_time
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from sfad.protocol.texts.units import parse_count, parse_duration, parse_size, parse_whole
from sfad.protocol.types import Limit

from . import limits

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


class Words(list[str]):
    """What one text names, with commas between them."""

    def __init__(self, text: str) -> None:
        super().__init__(word for word in text.split(",") if word)


def completing(kind: str) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """Return what completes the words of a kind of `shell_completion.CANDIDATES`."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        from .completion import candidates  # needed for no other command line

        return candidates(kind, incomplete, ctx.params.get("socket"))

    return complete


# ---- The value of a text


class Value(NamedTuple):
    """What a word of a command line means: how the help calls it, what reads it, and what completes
    it."""

    metavar: str
    read: Callable[[str], Any] | None = None
    """Raises `ValueError`, or `UsageError`, which names the option itself."""
    words: str = ""
    """A kind of `shell_completion.CANDIDATES`."""

    def option(self, about: str, *names: str) -> Any:
        """Declare an option, which is called like its parameter if it has no `names`."""
        return typer.Option(*names, help=about, **self._settings())

    def argument(self, about: str) -> Any:
        """Declare an argument."""
        return typer.Argument(help=about, **self._settings())

    def _settings(self) -> dict[str, Any]:
        return {
            "metavar": self.metavar,
            "parser": self.read and self._parse,
            "autocompletion": completing(self.words) if self.words else None,
        }

    def _parse(self, text: Any) -> Any:
        if not isinstance(text, str):  # typer parses a default too
            return text
        assert self.read is not None
        try:
            return self.read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None


def flag(about: str, *names: str) -> Any:
    """Declare an option without a value."""
    return typer.Option(*names, help=about)


def one_of(words: Iterable[str], kind: str) -> Callable[[str], str]:
    """Return a reader that takes only these words. `kind`: what a word is."""
    known = list(words)

    def read(text: str) -> str:
        if text not in known:
            raise ValueError(f"unknown {kind} {text!r}; choose from: {', '.join(known)}")
        return text

    return read


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


def coming(text: str, now: float | None = None) -> datetime:
    """Return the next time at which a clock shows `02:00`, a date with a time, which is local if it
    has no zone, or `in` a duration from now. Raise `ValueError`."""
    found = datetime.fromtimestamp(time.time() if now is None else now)
    begin = found
    try:
        if text.startswith("in "):
            found += timedelta(seconds=parse_duration(text[3:].strip()))
        elif len(text) <= len("22:00:00") and ":" in text:
            found = datetime.combine(found, clock_time.fromisoformat(text))
            found += timedelta(days=int(found <= begin))
        else:
            found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        forms = '02:00, 2026-01-31T02:00 or "in 2h"'
        raise ValueError(f"{text!r} is not a time to come; write {forms}") from None
    found = found.astimezone()
    if found <= begin.astimezone():
        raise ValueError(f"{text!r} is over: it is {begin:%Y-%m-%d %H:%M}")
    return found


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


AGENT = Value("AGENT", words="agent")
AMOUNT = Value("N", parse_count)
BRANCH = Value("BRANCH")
CHANNEL = Value("CHANNEL", words="channel")
COUNT = Value("N", partial(parse_whole, least=0))
DIR = Value("DIR")
GROUP = Value("NAME", words="group")
LABEL = Value("K=V", pair, words="label")
LIMIT = Value("KIND=N", limits.of_flag, words="kind of limit")
LIVE_RUN = Value("RUN", words="live")
MODEL = Value("MODEL")
ONE_MODEL = Value("MODEL", words="model")
MOMENT = Value("TIME", moment)
NAME = Value("NAME", words="name")
NEW_NAME = Value("NAME")
NODE = Value("NODE")
PAIR = Value("K=V", pair)
PATH = Value("PATH")
RUN = Value("RUN", words="run")
TEXT = Value("TEXT")
TIME = Value("TIME", parse_duration)
TOOL = Value("TOOL")
TYPE = Value("TYPE", words="type")
USER = Value("USER", words="user")
WHOLE = Value("N", parse_whole)
WORDS = Value("VERB", Words)


# ---- Options and arguments


def _or_before_verb(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Return the value of an option, or what stands before the verb, where all verbs have it."""
    return value or ctx.find_root().params.get(param.name or "") or value


_SOCKET_HELP = "The daemon's socket (default: SFA_SOCKET, SFAD_SOCKET, the user's, the system's)"

RootSocket = Annotated[str | None, PATH.option(_SOCKET_HELP)]
RootJson = Annotated[bool, typer.Option("--json", hidden=True)]
Socket = Annotated[
    str | None, typer.Option(metavar="PATH", help=_SOCKET_HELP, callback=_or_before_verb)
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print JSON on stdout; notes stay on stderr", callback=_or_before_verb
    ),
]

_RUNS = "Ids, names, or unique prefixes of ids"
_RUN = "Id, name, or unique prefix of an id"
Runs = Annotated[list[str], RUN.argument(_RUNS)]
LiveRuns = Annotated[list[str], LIVE_RUN.argument(_RUNS)]
Run = Annotated[str, RUN.argument(_RUN)]
LiveRun = Annotated[str, LIVE_RUN.argument(_RUN)]
MaybeRun = Annotated[str | None, RUN.argument(_RUN)]

_SEVERAL = "with this label; several values of a key match any of them"
Names = Annotated[list[str], NAME.option("Only runs of this name", "--name")]
Labels = Annotated[list[Pair], LABEL.option(f"Only runs {_SEVERAL}", "--label")]
LiveNames = Annotated[list[str], NAME.option("Live runs of this name", "--name")]
LiveLabels = Annotated[list[Pair], LABEL.option(f"Live runs {_SEVERAL}", "--label")]
User = Annotated[str | None, USER.option("Only this user's runs")]
AllLive = Annotated[bool, flag("Every live run that you may see", "--all")]
AllListed = Annotated[bool, flag("The live runs and the last 50 that ended", "--all")]
NewChecks = Annotated[
    list[str],
    Value("CMD").option(
        "Complete the run only if this shell command succeeds after it; may be repeated", "--check"
    ),
]
NewLimits = Annotated[
    list[Limit],
    LIMIT.option("New limit, from the start of the run: turns=50, cost=2.50, tokens=200k, …"),
]
"""For verbs that give a run more room."""
