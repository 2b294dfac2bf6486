"""How many tokens a call has: its input before it is made, from its body; its output if it is
broken off."""

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ..agents.counters import BYTES_A_TOKEN as _WRITTEN_A_TOKEN
from ..protocol.types import Tokens
from .apis import ModelCall

BYTES_A_TOKEN = 2.5
"""Of a run whose calls nothing is known of yet. English and code have three to four bytes a token,
so this estimates too much."""
MOST_A_BYTE = 1.0
"""Tokens: the vocabularies of the providers have a token for each byte, so a text has no more
tokens than bytes."""
ADDED = 1000
"""Tokens that a provider may add to a request, of which tools take 804 at most
(https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview, "Pricing")."""
MOST_KEPT = 400_000
"""Tokens that a provider may keep of a conversation of which nothing is known here, or read from
files that a request only names: the largest input of most models."""
SPREAD = 0.1
"""The part by which the tokens a byte of a run's calls may be above those of the calls before."""
MAX_RUNS = 4096
_IMAGE = re.compile(
    rb'"(?:data"\s*:\s*"|(?:image_)?url"\s*:\s*"data:image/[a-z+.-]+;base64,)'
    rb'(?:iVBORw0KGgo|/9j/|R0lGOD|UklGR)[A-Za-z0-9+/=]*"'
)
"""PNG, JPEG, GIF and WebP in base64, in the fields of the APIs. Their tokens follow from their
pixels, not from their bytes. In a text, where quotes are escaped, the same has the tokens of a
text."""
_IMAGE_BYTES = 12_500
"""What an image counts as: 5000 tokens, a guess on the high side."""


def text_size(body: bytes) -> int:
    """Return the bytes of a body as if each image had the same number."""
    # its media type, wherever an API wants it; looking for images themselves takes ten times as
    # long
    if b"image/" not in body:
        return max(1, len(body))
    images = [image.end() - image.start() for image in _IMAGE.finditer(body)]
    return max(1, len(body) - sum(images) + _IMAGE_BYTES * len(images))


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

    def input(self, run: str, call: ModelCall, size: int) -> InputEstimate:
        known = self._runs.get((run, call.model), _NOTHING)
        kept, more_kept = 0, MOST_KEPT if call.refers else 0
        if call.continues:
            kept, more_kept = known.kept or 0, more_kept + (MOST_KEPT if known.kept is None else 0)
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

    def learn(self, run: str, call: ModelCall, size: int, used: Tokens, written: int) -> None:
        """Take how many tokens a call had, and how many bytes its reply."""
        if not used.input:
            return
        known = self._runs.setdefault((run, call.model), _Known())
        if not call.continues:
            known.take(size, used.input)
            self._models.setdefault(call.model, _Known()).take(size, used.input)
        known.kept = used.input + used.output
        if written and used.output:
            known.written, known.output = known.written + written, known.output + used.output
        _touch(self._runs, (run, call.model))
        _touch(self._models, call.model)


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
