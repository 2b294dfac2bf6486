"""How many tokens a call has: its input before it is made, from its body; its output if it is
broken off."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ..agents.counters import BYTES_A_TOKEN as _WRITTEN_A_TOKEN
from ..protocol.types import Modality, Tokens
from .apis import ModelCall
from .apis.base import MOST_NAMED

BYTES_A_TOKEN = 2.5
"""Of a run whose calls nothing is known of yet. English and code have three to four bytes a token,
so this estimates too much."""
MOST_A_BYTE = 1.0
"""Tokens: the vocabularies of the providers have a token for each byte, so a text has no more
tokens than bytes."""
ADDED = 1000
"""Tokens that a provider may add to a request, of which tools take 804 at most
(https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview, "Pricing")."""
MOST_KEPT = MOST_NAMED
"""Tokens that a provider may keep of a conversation of which nothing is known here, or read from
files that a request only names."""
SPREAD = 0.1
"""The part by which the tokens a byte of a run's calls may be above those of the calls before."""
MAX_RUNS = 4096


class InputEstimate(NamedTuple):
    tokens: int
    more: int
    """So many tokens more the input may have."""


@dataclass(slots=True)
class _Known:
    """What the calls of a run to a model had, or those of all runs."""

    a_byte: float = 0.0
    """Tokens a byte of input: the highest, which falls slowly."""
    size: int = 0
    """Bytes of the last input that counted for `a_byte`."""
    tokens: int = 0
    kept: int | None = None
    """Tokens that the provider keeps where the next call continues the last one."""
    written: int = 0
    """Bytes that the model has written in whole replies."""
    output: int = 0
    """Tokens of these replies, hidden thinking included."""

    def take(self, size: int, tokens: int) -> None:
        ratio = min(tokens / size, MOST_A_BYTE)
        if not self.size or size > 4 * self.size:
            self.a_byte = ratio
        elif 4 * size < self.size:
            return  # what a provider adds to each request is most of a small one
        else:
            self.a_byte = max(ratio, self.a_byte + (ratio - self.a_byte) / 8)
        self.size, self.tokens = size, tokens


class Estimates:
    """The tokens a byte of each run's calls. A run's calls grow by what the agent adds to one
    conversation."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._models: OrderedDict[str, _Known] = OrderedDict()

    def input(self, run: str, call: ModelCall) -> InputEstimate:
        known, size = self._runs.get((run, call.model), _NOTHING), call.size
        kept, more_kept = 0, MOST_KEPT if call.refers else 0
        for mode in ("audio", "video"):
            played = call.media.get(mode, 0)
            kept += played
            more_kept += max(0, call.most_media.get(mode, 0) - played)
        if call.continues:
            kept += known.kept or 0
            more_kept += MOST_KEPT if known.kept is None else 0
        if not known.size:
            likely = max(1 / BYTES_A_TOKEN, self._models.get(call.model, _NOTHING).a_byte)
            return _estimate(size * likely, size * MOST_A_BYTE + ADDED, kept, more_kept)
        # a small PDF of many pages has more tokens than bytes, and a conversation that has one goes
        # on with it
        likely = max(size * known.a_byte, float(known.tokens if size >= known.size else 0))
        # of what was not there before, nothing is known
        most = max(likely * (1 + SPREAD), known.tokens + (size - known.size) * MOST_A_BYTE)
        return _estimate(likely, most, kept, more_kept)

    def output(self, run: str, call: ModelCall, written: int) -> int:
        """Return the tokens of so many bytes that a model has written."""
        known = self._runs.get((run, call.model), _NOTHING)
        return (
            -(-written * known.output // known.written)
            if known.written
            else -(-written // _WRITTEN_A_TOKEN)
        )

    def learn(self, run: str, call: ModelCall, used: Tokens, written: int) -> None:
        """Take how many tokens a call had, and how many bytes its reply."""
        played = sum(used.modes[mode].input for mode in ("audio", "video") if mode in used.modes)
        size, text = call.size, used.input - played
        if not used.input:
            return
        known = self._runs.setdefault((run, call.model), _Known())
        if not call.continues:
            known.take(size, text)
            self._models.setdefault(call.model, _Known()).take(size, text)
        known.kept = used.input + used.output
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


def _estimate(likely: float, most: float, kept: int, more_kept: int) -> InputEstimate:
    tokens = 1 + int(likely)
    return InputEstimate(tokens + kept, max(0, int(most) - tokens) + more_kept)


K = TypeVar("K")


def _touch(known: OrderedDict[K, _Known], key: K) -> None:
    """Forget what was used longest ago."""
    if key in known:
        known.move_to_end(key)
    while len(known) > MAX_RUNS:
        known.popitem(last=False)
