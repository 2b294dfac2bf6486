"""Sums of what agents say, bounded whatever an agent says."""

import re
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct, field

from ..protocol.kinds import COUNTS
from ..protocol.requests.windows import SeenWindow
from ..protocol.texts.units import MOST_COUNTED, MOST_SPENT
from ..protocol.types import ApiTrouble, Tokens

# ---- What a meter reads, and the interface of a meter


MAX_LINE = 1 << 20
"""Bytes of the longest line that is read. An agent's events are far smaller; a larger line is the
output of one of its tools."""
MAX_TOOLS = 64
"""Names kept in `Reading.tools`. The events of a run are published many times a second; a slower
reader sees the latest names."""
MAX_NAME = 128
"""Characters of the name of a model or tool, which goes into the ledger and into events."""
MAX_WORDS = 300
"""Characters of `Reading.failed`, which must fit into the line that says why a run ended."""


class WindowsTold(msgspec.Struct, frozen=True, array_like=True):
    """What an agent has told last of windows."""

    time: float
    """Unix time."""
    plan_type: str | None
    windows: tuple[SeenWindow, ...]
    credits: str | None = None


SIZES = (0, 32_000, 100_000, 128_000, 199_999, 200_000, 256_000, 272_000, 512_000, 524_288)
"""Tokens of input above which a request of some model costs more (`usage.pricing`)."""


class Reading(Struct):
    """What an agent has said since its attempt began. It grows in place while the meter is fed.

    A figure is `None` (or `models` is empty) until the agent tells it: an agent that tells its
    usage at its end has not used 0 until then."""

    turns: int | None = None
    messages: int | None = None
    models: dict[str, Tokens] = field(default_factory=dict)
    cost_usd: float | None = None
    """The cost that the agent itself reports, of all tokens but the `uncovered` ones. It takes
    precedence over a computed cost of the same tokens."""
    uncovered: dict[str, Tokens] = field(default_factory=dict)
    """The part of `models` that `cost_usd` does not cover. The cost of a known program covers all
    its tokens, that of a `jsonl` line only the tokens of the line. Without meaning while `cost_usd`
    is `None`."""
    guessed: dict[str, int] = field(default_factory=dict)
    """The part of the output tokens in `models` that is estimated from the size of what was
    printed."""
    partial: bool = False
    """Tokens and cost may still grow: something has begun whose final figures the agent has not
    told."""
    session: str = ""
    """The agent's id of its session, by which its session file is found."""
    tools: list[str] = field(default_factory=list)
    """Names of the tools called since the reader last emptied this list, the last `MAX_TOOLS` of
    them."""
    finished: bool = False
    """The agent has printed its final result and is expected to exit now."""
    failed: str | None = None
    """Why the agent failed, in its own words, whatever its exit code; one line of at most
    `MAX_WORDS` characters."""
    trouble: ApiTrouble | None = None
    """The calls of the model that have failed since its last answer."""
    provider: str = ""
    """The agent's name of the provider that it calls."""
    tier: str = ""
    """The provider's tier that the agent asks for, as far as that is not in `cost_usd`."""
    broken: bool = False
    """A call has ended without the end of its reply, by a lost connection or an interrupt. It may
    be billed, and no figure has all of it."""
    skipped_lines: int = 0
    """Lines longer than `MAX_LINE` that may have told usage, and were not read."""
    windows: WindowsTold | None = field(default=None, name="subscription")
    by_size: dict[str, dict[int, Tokens]] = field(default_factory=dict)
    """Of the tokens to price, those of single requests, by the step of `SIZES` that their input is
    above: a longer request may cost more. Only of programs that tell each request."""

    @property
    def blank(self) -> bool:
        """Whether the meter has recognised no event of its program."""
        counted = any(getattr(self, name) is not None for name in COUNTS)
        return not counted and not self.models and self.cost_usd is None and not self.finished

    @property
    def to_price(self) -> dict[str, Tokens]:
        """The tokens whose cost the agent has not told. The attempt has cost `cost_usd` plus their
        price, as far as these are known."""
        return self.models if self.cost_usd is None else self.uncovered


class Meter(Protocol):
    reading: Reading

    def feed(self, data: bytes | memoryview) -> None:
        """Read the next bytes. Never raises, whatever an agent prints.

        A line counts when its newline has come. Feed a newline when the stdout has ended, so that
        an incomplete last line counts.
        """

    def dump(self) -> bytes:
        """Return all that the meter knows, from which another daemon continues: its state, its
        reading and the line that has begun. Mostly less than a few KB; at most 150 KB (1 024
        message ids) plus the line that has begun."""


# ---- Numbers that agents say, checked


MAX_IDS = 1024
"""Ids remembered of each kind. An id is repeated within a message, or within the few messages that
subagents write at the same time. An id that comes back later than this counts again: too much
rather than too little."""

MAX_MODELS = 64
"""Models told apart in one attempt; agents use two or three. The usage of any further model is
counted under `""`."""

BYTES_A_TOKEN = 4
"""For estimates. OpenAI says four characters of English
(https://help.openai.com/en/articles/4936856), Anthropic 3.5
(https://platform.claude.com/docs/en/about-claude/glossary, "Tokens"): the larger one estimates
less."""

_MAX_SUM = 10**15
"""Where sums stop: exact in JSON, SQLite and a float."""

V = TypeVar("V")


def number(value: Any) -> int:
    return int(value) if type(value) in {int, float} and 0 <= value <= MOST_COUNTED else 0


def dollars(value: Any) -> float | None:
    """Return an amount in USD as a program printed it, or `None` if it is not a number, negative or
    absurd."""
    return float(value) if type(value) in {int, float} and 0 <= value <= MOST_SPENT else None


def tokens(
    *,
    fresh: Any = 0,
    read: Any = 0,
    written: Any = 0,
    long: Any = 0,
    output: Any = 0,
    reasoning: Any = 0,
) -> Tokens:
    """Return the tokens of a program that counts separately those read from a cache, those written
    to it, and the rest. `long`: of those written, those that are kept for an hour."""
    cached, cache_write = number(read), number(written)
    total = number(fresh) + cached + cache_write
    all_output = number(output) + number(reasoning)
    return Tokens(
        input=total,
        output=all_output,
        cached=cached,
        cache_write=cache_write,
        long_write=min(number(long), cache_write),
    )


def tokens_in_all(*, total: Any = 0, read: Any = 0, written: Any = 0, output: Any = 0) -> Tokens:
    """Return the tokens of a program that counts those read from and written to a cache as part of
    its input."""
    whole = number(total)
    cached = min(number(read), whole)
    return Tokens(
        input=whole,
        output=number(output),
        cached=cached,
        cache_write=min(number(written), whole - cached),
    )


def plus(one: Tokens, other: Tokens) -> Tokens:
    return _each(one, other, 1)


def minus(one: Tokens, other: Tokens) -> Tokens:
    return _each(one, other, -1)


def _each(one: Tokens, other: Tokens, sign: int) -> Tokens:
    """Cached tokens stay part of the input, even where a program takes back more input than cached
    tokens."""
    whole = _within(one.input + sign * other.input)
    cached = min(_within(one.cached + sign * other.cached), whole)
    written = min(_within(one.cache_write + sign * other.cache_write), whole - cached)
    long = min(_within(one.long_write + sign * other.long_write), written)
    output = _within(one.output + sign * other.output)
    modes = {
        mode: _each(one.modes.get(mode, _NOTHING), other.modes.get(mode, _NOTHING), sign)
        for mode in one.modes | other.modes
    }
    return Tokens(
        input=whole,
        output=output,
        cached=cached,
        cache_write=written,
        long_write=long,
        modes=modes,
    )


_NOTHING = Tokens()


def _within(value: int) -> int:
    return min(max(value, 0), _MAX_SUM)


def add(models: dict[str, Tokens], name: str, used: Tokens) -> str:
    name = printable(name, MAX_NAME)
    if name not in models and len(models) >= MAX_MODELS:
        name = ""
    models[name] = plus(models.get(name, Tokens()), used)
    return name


def weight(models: dict[str, Tokens]) -> int:
    return sum(used.input + used.output for used in models.values())


def printable(text: Any, length: int) -> str:
    """Return one line of text without control characters and lone surrogates, of at most `length`;
    `""` if it is not text."""
    if not isinstance(text, str):
        return ""
    line = " ".join(text[: 4 * length].split())[:length]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def words(*texts: Any) -> str:
    """Return what `Reading.failed` says: the first value that is text, or that no reason was
    given."""
    found = (printable(text, MAX_WORDS) for text in texts)
    return next((text for text in found if text), "the agent reported a failure without a reason")


def recognised(reading: Reading) -> None:
    """Note that the stream is this program's: from here on a turn that is not seen was not made."""
    reading.turns = reading.turns or 0
    reading.messages = reading.messages or 0


def total(counted: int | None, more: Any) -> int:
    return _within((counted or 0) + number(more))


def turn(reading: Reading, tool: Any) -> None:
    reading.turns = total(reading.turns, 1)
    if name := printable(tool, MAX_NAME):
        reading.tools.append(name)
        del reading.tools[:-MAX_TOOLS]


def request(reading: Reading, model: str, used: Tokens, count: int = 1) -> None:
    """Note the tokens of a request to a model, or of so many of about the same size."""
    size = max(each for each in SIZES if each < max(1, used.input // count))
    of_model = reading.by_size.setdefault(model, {})
    of_model[size] = plus(of_model.get(size, Tokens()), used)


def message(reading: Reading) -> None:
    reading.messages = total(reading.messages, 1)


def size(*texts: Any) -> int:
    """Return the bytes of what a model has written: text, or JSON that was not decoded."""
    return sum(len(_bytes(text)) for text in texts)


def _bytes(text: Any) -> bytes:
    if isinstance(text, str):
        return text.encode(errors="replace")
    return bytes(text) if isinstance(text, msgspec.Raw) else b""


def failed_call(
    reading: Reading, status: Any = None, error: Any = None, *, count: Any = None
) -> None:
    """Count a call of the model that failed. `count`: the number of failures in a row that the
    agent itself tells."""
    code = number(status)
    reading.broken |= not code
    so_far = reading.trouble.count if reading.trouble is not None else 0
    reading.trouble = ApiTrouble(
        count=max(so_far + 1, min(number(count), MAX_IDS)),
        status=code if 100 <= code <= 599 else None,
        error=printable(error, MAX_WORDS),
    )


def failed_call_in_words(reading: Reading, message: Any) -> None:
    """Count a failed call of which only a message is known, as from Codex: `Reconnecting... 2/5
    (unexpected status 503 …)`."""
    text = printable(message, MAX_WORDS)
    status, attempt = _STATUS.search(text), _ATTEMPT.search(text)
    failed_call(
        reading,
        int(status[1]) if status else None,
        text,
        count=int(attempt[1]) if attempt else None,
    )


_STATUS = re.compile(r"\bstatus(?: code)?:? ?(\d{3})\b")
_ATTEMPT = re.compile(r"\bReconnecting\.\.\. (\d{1,4})/")


def spend(reading: Reading, cost: float | None) -> None:
    if cost is not None:
        reading.cost_usd = min((reading.cost_usd or 0.0) + cost, float(_MAX_SUM))


class RecentIds(msgspec.Struct, Generic[V], array_like=True):
    """A value for each of the last `MAX_IDS` ids. An id that is empty or too long is never
    remembered."""

    kept: dict[str, V] = {}

    def get(self, key: str) -> V | None:
        return self.kept.get(key)

    def first(self, key: str, value: V) -> bool:
        """Remember an id unless it is remembered already. Return whether it was not."""
        known = key in self.kept
        if not known:
            self.put(key, value)
        return not known

    def put(self, key: str, value: V) -> None:
        if 0 < len(key) <= MAX_NAME:
            self.kept[key] = value
            if len(self.kept) > MAX_IDS:
                del self.kept[next(iter(self.kept))]


class Estimate(msgspec.Struct, array_like=True):
    """Output tokens of what a model has written since its agent last told its usage. The reading
    includes them."""

    written: int = 0
    model: str = ""

    def grow(self, reading: Reading, model: str, *texts: Any) -> None:
        """Add what the model has written. If the agent changes its model, all text since the last
        usage counts as the later model's."""
        reading.partial, reading.trouble = True, None  # the model has answered
        more = size(*texts)
        if more:
            written = min(self.written + more, _MAX_SUM)
            self.withdraw(reading)
            self.written, self.model = written, add(reading.models, model, _estimated(written))
            add(reading.uncovered, model, _estimated(written))
            reading.guessed = {self.model: written // BYTES_A_TOKEN}

    def withdraw(self, reading: Reading) -> None:
        """Take the estimate out of the reading, because the agent tells the true figure."""
        estimated, self.written = _estimated(self.written), 0
        reading.guessed.clear()
        for sums in (reading.models, reading.uncovered):
            if estimated.output and self.model in sums:
                rest = minus(sums.pop(self.model), estimated)
                if rest != Tokens():
                    sums[self.model] = rest


def _estimated(written: int) -> Tokens:
    return Tokens(output=written // BYTES_A_TOKEN)


class Totals(msgspec.Struct, array_like=True):
    """Running totals as a process restates them, of one process after another.

    The totals of a process only grow. So if they fall, or come from another session, another
    process has begun to write (as in a script that starts the agent twice), and what the process
    before it said stays counted."""

    session: str = ""
    before: dict[str, Tokens] = {}
    """Totals of the processes before this one, as is `cost_before`."""
    cost_before: float = 0.0
    now: dict[str, Tokens] = {}
    cost_now: float = 0.0

    def restate(self, reading: Reading, session: str, models: dict[str, Tokens]) -> None:
        """Set the reading to these totals plus those of the processes before this one."""
        if session[:MAX_NAME] != self.session or weight(models) < weight(self.now):
            self._bank()
        self.session = session[:MAX_NAME]
        self.now = models
        reading.models.clear()
        for part in (self.before, models):
            for name, used in part.items():
                add(reading.models, name, used)

    def restate_cost(self, reading: Reading, cost: float | None) -> None:
        """Do the same for the cost of this process, after its tokens; `None` changes nothing."""
        if cost is not None:
            self.cost_now = cost
            reading.cost_usd = min(self.cost_before + cost, float(_MAX_SUM))

    def _bank(self) -> None:
        for name, used in self.now.items():
            add(self.before, name, used)
        self.cost_before += self.cost_now
        self.now, self.cost_now = {}, 0.0
