"""Sums of what agents say, bounded whatever they say."""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

import msgspec

from ..protocol.types import ApiTrouble, Tokens
from ..protocol.units import MOST_COUNTED, MOST_SPENT
from .base import MAX_NAME, MAX_TOOLS, MAX_WORDS, Reading

MAX_IDS = 1024
"""Ids remembered of each kind. What repeats an id does so within a message, or within the few that subagents write at the
same time; one that comes back later than this counts again: too much rather than too little."""

MAX_MODELS = 64
"""Models told apart in one attempt; agents use two or three. The use of any further one is counted under `""`."""

BYTES_A_TOKEN = 4
"""For estimates. OpenAI names four characters of English (https://help.openai.com/en/articles/4936856), Anthropic 3.5
(https://platform.claude.com/docs/en/about-claude/glossary, "Tokens"): the larger of them estimates less."""

_MAX_SUM = 10**15
"""Where sums stop: exact in JSON, in SQLite and in a float."""

V = TypeVar("V")


def number(value: Any) -> int:
    """A count as a program printed it; 0 if it is no number, negative or absurd."""
    return int(value) if type(value) in {int, float} and 0 <= value <= MOST_COUNTED else 0


def dollars(value: Any) -> float | None:
    """An amount as a program printed it; `None` if it is no number, negative or absurd."""
    return float(value) if type(value) in {int, float} and 0 <= value <= MOST_SPENT else None


def tokens(*, fresh: Any = 0, read: Any = 0, written: Any = 0, output: Any = 0, reasoning: Any = 0) -> Tokens:
    """Tokens of a program that counts apart what was read from a cache, what was written to it, and the rest."""
    cached, cache_write = number(read), number(written)
    total = number(fresh) + cached + cache_write
    return Tokens(input=total, output=number(output) + number(reasoning), cached=cached, cache_write=cache_write)


def tokens_in_all(*, total: Any = 0, read: Any = 0, written: Any = 0, output: Any = 0) -> Tokens:
    """Tokens of a program that counts what was read from and written to a cache as part of its input."""
    whole = number(total)
    cached = min(number(read), whole)
    return Tokens(input=whole, output=number(output), cached=cached, cache_write=min(number(written), whole - cached))


def plus(one: Tokens, other: Tokens) -> Tokens:
    """The sum."""
    return _each(one, other, 1)


def minus(one: Tokens, other: Tokens) -> Tokens:
    """The difference, at least 0."""
    return _each(one, other, -1)


def _each(one: Tokens, other: Tokens, sign: int) -> Tokens:
    """Cached tokens stay part of the input, also where a program takes back more input than it takes back of them."""
    whole = _within(one.input + sign * other.input)
    cached = min(_within(one.cached + sign * other.cached), whole)
    written = min(_within(one.cache_write + sign * other.cache_write), whole - cached)
    return Tokens(input=whole, output=_within(one.output + sign * other.output), cached=cached, cache_write=written)


def _within(value: int) -> int:
    return min(max(value, 0), _MAX_SUM)


def add(models: dict[str, Tokens], name: str, used: Tokens) -> str:
    """Adds to a model's tokens. Returns the name that they are under."""
    name = printable(name, MAX_NAME)
    if name not in models and len(models) >= MAX_MODELS:
        name = ""
    models[name] = plus(models.get(name, Tokens()), used)
    return name


def weight(models: dict[str, Tokens]) -> int:
    """All tokens of all models."""
    return sum(used.input + used.output for used in models.values())


def printable(text: Any, length: int) -> str:
    """One line of text: no control characters, no lone surrogates, not longer than `length`; `""` if it is no text."""
    if not isinstance(text, str):
        return ""
    line = " ".join(text[: 4 * length].split())[:length]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def words(*texts: Any) -> str:
    """What a `failed` says: the first of the texts that is one, or that there was none."""
    found = (printable(text, MAX_WORDS) for text in texts)
    return next((text for text in found if text), "the agent reported a failure without a reason")


def recognised(reading: Reading) -> None:
    """The stream is this program's: from here on a turn that is not seen was not made."""
    reading.turns = reading.turns or 0
    reading.messages = reading.messages or 0


def total(counted: int | None, more: Any) -> int:
    """A count and what is added to it."""
    return _within((counted or 0) + number(more))


def turn(reading: Reading, tool: Any) -> None:
    """Counts a tool call."""
    reading.turns = total(reading.turns, 1)
    if name := printable(tool, MAX_NAME):
        reading.tools.append(name)
        del reading.tools[:-MAX_TOOLS]


def message(reading: Reading) -> None:
    """Counts a message of the model."""
    reading.messages = total(reading.messages, 1)


def size(*texts: Any) -> int:
    """The bytes of what a model has written: text, or JSON that was not decoded."""
    return sum(len(_bytes(text)) for text in texts)


def _bytes(text: Any) -> bytes:
    if isinstance(text, str):
        return text.encode(errors="replace")
    return bytes(text) if isinstance(text, msgspec.Raw) else b""


def failed_call(reading: Reading, status: Any = None, error: Any = None, *, count: Any = None) -> None:
    """Counts a call of the model that failed; `count`: of how many in a row the agent itself speaks."""
    code = number(status)
    so_far = reading.trouble.count if reading.trouble is not None else 0
    reading.trouble = ApiTrouble(
        count=max(so_far + 1, min(number(count), MAX_IDS)),
        status=code if 100 <= code <= 599 else None,
        error=printable(error, MAX_WORDS),
    )


def failed_call_in_words(reading: Reading, message: Any) -> None:
    """The same from a message alone, as Codex prints it: `Reconnecting... 2/5 (unexpected status 503 …)`."""
    text = printable(message, MAX_WORDS)
    status, attempt = _STATUS.search(text), _ATTEMPT.search(text)
    failed_call(
        reading, int(status[1]) if status is not None else None, text, count=int(attempt[1]) if attempt is not None else None
    )


_STATUS = re.compile(r"\bstatus(?: code)?:? ?(\d{3})\b")
_ATTEMPT = re.compile(r"\bReconnecting\.\.\. (\d{1,4})/")


def spend(reading: Reading, cost: float | None) -> None:
    """Adds to the cost; an unknown cost leaves it as it is."""
    if cost is not None:
        reading.cost_usd = min((reading.cost_usd or 0.0) + cost, float(_MAX_SUM))


class Recent(msgspec.Struct, Generic[V], array_like=True):
    """What belongs to the last `MAX_IDS` ids. One that is empty or too long to keep is never remembered."""

    kept: dict[str, V] = {}
    """The oldest first."""

    def get(self, key: str) -> V | None:
        """What was put there, unless it is too long ago."""
        return self.kept.get(key)

    def put(self, key: str, value: V) -> None:
        """Remembers it, in the place of the oldest if need be."""
        if 0 < len(key) <= MAX_NAME:
            self.kept[key] = value
            if len(self.kept) > MAX_IDS:
                del self.kept[next(iter(self.kept))]


class Estimate(msgspec.Struct, array_like=True):
    """Output tokens of what a model has written since its agent last told its usage. They stand in the reading, too."""

    written: int = 0
    """Bytes."""
    model: str = ""

    def grow(self, reading: Reading, model: str, *texts: Any) -> None:
        """Adds what was written. An agent that changes its model has its earlier text counted as the later one's."""
        more = size(*texts)
        if more:
            written = min(self.written + more, _MAX_SUM)
            self.settle(reading)
            self.written, self.model = written, add(reading.models, model, _estimated(written))
            add(reading.uncovered, model, _estimated(written))

    def settle(self, reading: Reading) -> None:
        """Takes the estimate out of the reading: the agent tells the truth."""
        estimated, self.written = _estimated(self.written), 0
        for sums in (reading.models, reading.uncovered):
            if estimated.output and self.model in sums:
                rest = minus(sums.pop(self.model), estimated)
                if rest != Tokens():
                    sums[self.model] = rest


def _estimated(written: int) -> Tokens:
    return Tokens(output=written // BYTES_A_TOKEN)


class Totals(msgspec.Struct, array_like=True):
    """Running totals as a process restates them, of one process after another.

    Totals of a process only grow. So if they fell, or came from another session, another process has begun to write (a
    script that starts the agent twice), and what the one before it said stays counted.
    """

    session: str = ""
    before: dict[str, Tokens] = {}
    """Of the processes before this one, as is `cost_before`."""
    cost_before: float = 0.0
    now: dict[str, Tokens] = {}
    cost_now: float = 0.0

    def restate(self, reading: Reading, session: str, models: dict[str, Tokens]) -> None:
        """Makes the reading say these totals, and what came before this process."""
        if session[:MAX_NAME] != self.session or weight(models) < weight(self.now):
            self._bank()
        self.session = session[:MAX_NAME]
        self.now = models
        reading.models.clear()
        for part in (self.before, models):
            for name, used in part.items():
                add(reading.models, name, used)

    def restate_cost(self, reading: Reading, cost: float | None) -> None:
        """The same for what this process has cost, after its tokens; nothing if it does not say."""
        if cost is not None:
            self.cost_now = cost
            reading.cost_usd = min(self.cost_before + cost, float(_MAX_SUM))

    def _bank(self) -> None:
        for name, used in self.now.items():
            add(self.before, name, used)
        self.cost_before += self.cost_now
        self.now, self.cost_now = {}, 0.0
