"""How many tokens a call has: its input before it is made, from its body; its output if it is
broken off."""

from collections import OrderedDict
from collections.abc import Mapping
from math import ceil
from typing import NamedTuple, TypeVar

from msgspec import Struct

from .....agents.counters import BYTES_A_TOKEN as _WRITTEN_A_TOKEN
from .....protocol.types import Modality, Tokens
from ..apis import ModelCall
from ..apis.base import MOST_NAMED

MOST_RATIO = 4.0
"""The tokens that an input may have are at most so many times those that its text tells."""
ADDED = 1000
"""Tokens that a provider may add to a request, of which tools take 804 at most
(https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview, "Pricing")."""
MOST_KEPT = MOST_NAMED
"""Tokens that a provider may keep of a conversation of which nothing is known here, or read from
files that a request only names."""
SPREAD = 0.1
"""The part by which the ratio of a run's calls may be above that of the calls before."""
NEW_SPREAD = 0.25
"""The part by which a text of which nothing is known may have more tokens than it tells: the
tokenizer of Claude Opus 4.7 has up to 1.35 times those of the models before
(https://platform.claude.com/docs/en/about-claude/models/migration-guide), and estimates are mostly
a tenth too high."""
MAX_RUNS = 4096


class InputEstimate(NamedTuple):
    tokens: int
    more: int
    """So many tokens more the input may have."""
    likely_more: int
    """The part of these by which estimates are often wrong."""


class _Known(Struct):
    """What the calls of a run to a model had, or those of all runs."""

    ratio: float = 0.0
    """Tokens of input to those that its text tells: the highest, which falls slowly."""
    told: int = 0
    """Tokens that the text of the last input told that counted for `ratio`."""
    most: int = 0
    """Tokens that it had at most."""
    tokens: int = 0
    """Tokens that it had."""
    kept: int | None = None
    """Tokens that the provider keeps where the next call continues the last one."""
    written: int = 0
    """Bytes that the model has written in whole replies."""
    output: int = 0
    """Tokens of these replies, hidden thinking included."""
    reply: tuple[int, int] = (0, 0)
    """Bytes and tokens of the last one, which the next input of its conversation has, too."""

    def take(self, call: ModelCall, tokens: int) -> bool:
        """Return whether the call counts."""
        told = call.tokens
        ratio = min(tokens / told, MOST_RATIO)
        if not self.told or told > 4 * self.told:
            self.ratio = ratio
        elif 4 * told < self.told:
            return False  # what a provider adds to each request is most of a small one
        else:
            self.ratio = max(ratio, self.ratio + (ratio - self.ratio) / 8)
        self.told, self.most, self.tokens = told, call.most_tokens, tokens
        return True

    def beyond_reply(self, new: float, call: ModelCall) -> float:
        """Return by how much the estimate of what is new in an input is too high, because the last
        reply is a part of it, whose tokens are known. A program may write it in another form."""
        written, output = self.reply
        grown = max(1, call.most_tokens - self.most)
        replied = output * (1 + NEW_SPREAD) + new * max(0, grown - written) / grown
        return max(0.0, new - replied)


class Estimates:
    """What the texts of each run's calls tell of their tokens. A run's calls grow by what the agent
    adds to one conversation."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._models: OrderedDict[str, _Known] = OrderedDict()

    def input(self, run: str, call: ModelCall) -> InputEstimate:
        known, told = self._runs.get((run, call.model), _NOTHING), call.tokens
        kept, more_kept = 0, MOST_KEPT if call.refers else 0
        for mode in ("audio", "video"):
            played = call.media.get(mode, 0)
            kept += played
            more_kept += max(0, call.most_media.get(mode, 0) - played)
        if call.continues:
            kept += known.kept or 0
            more_kept += MOST_KEPT if known.kept is None else 0
        if not known.told:
            likely = told * max(1.0, self._models.get(call.model, _NOTHING).ratio)
            usual = likely * (1 + NEW_SPREAD) + ADDED
            most = float(call.most_tokens + ADDED)
        else:
            # a small PDF of many pages has more tokens than it tells, and a conversation that has
            # one goes on with it
            likely = max(told * known.ratio, float(known.tokens if told >= known.told else 0))
            grown = max(0, told - known.told)
            likely -= known.beyond_reply(grown * known.ratio, call)
            new = (told - known.told) * max(1.0, known.ratio)
            new -= known.beyond_reply(grown * max(1.0, known.ratio), call)
            # of what was not there before, nothing is known
            usual = max(likely * (1 + SPREAD), known.tokens + new * (1 + NEW_SPREAD))
            most = max(likely * (1 + SPREAD), known.tokens + call.most_tokens - known.most)
        tokens = 1 + int(likely)
        more = max(0, int(most) - tokens)
        likely_more = min(more, max(0, int(usual) - tokens))
        return InputEstimate(tokens + kept, more + more_kept, likely_more + more_kept)

    def output(self, run: str, call: ModelCall, written: int) -> int:
        """Return the tokens of so many bytes that a model has written."""
        known = self._runs.get((run, call.model), _NOTHING)
        shown = written / _WRITTEN_A_TOKEN
        if not known.written:
            return ceil(shown)
        hidden, part = known.output - known.written / _WRITTEN_A_TOKEN, written / known.written
        # a title of five bytes may have ninety tokens of thinking: a long reply has not as many for
        # each of its bytes
        return ceil(shown + hidden * (part if hidden < 0 else min(1.0, part)))

    def learn(self, run: str, call: ModelCall, used: Tokens, written: int) -> None:
        """Take how many tokens a call had, and how many bytes its reply."""
        played = sum(used.modes[mode].input for mode in ("audio", "video") if mode in used.modes)
        if not used.input or not call.tokens:
            return
        known = self._runs.setdefault((run, call.model), _Known())
        grown, counts = call.most_tokens - known.most, call.continues
        if not call.continues:
            self._models.setdefault(call.model, _Known()).take(call, used.input - played)
            counts = known.take(call, used.input - played)
        if counts:
            known.kept = used.input + used.output
            # the last one is no part of this input if it has hardly grown: this is another
            # conversation, such as the one that finds a title
            if call.continues or max(grown, written) >= known.reply[0]:
                known.reply = written, used.output
        if written and used.output:
            known.written, known.output = known.written + written, known.output + used.output
        _touch(self._runs, (run, call.model))
        _touch(self._models, call.model)


def within(media: Mapping[Modality, int], tokens: int) -> dict[Modality, int]:
    """Return the parts of an input that are not text, which are together at most all of it."""
    found: dict[Modality, int] = {}
    for mode, count in media.items():
        found[mode] = min(count, tokens - sum(found.values()))
    return found


_NOTHING = _Known()


K = TypeVar("K")


def _touch(known: OrderedDict[K, _Known], key: K) -> None:
    """Forget what was used longest ago."""
    if key in known:
        known.move_to_end(key)
    while len(known) > MAX_RUNS:
        known.popitem(last=False)
