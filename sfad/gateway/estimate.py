"""How many tokens the input of a call has, from its body."""

import re
from collections import OrderedDict
from dataclasses import dataclass

from ..protocol.types import Tokens
from .apis import ModelCall

BYTES_A_TOKEN = 2.5
"""Of a run whose calls nothing is known of yet. English and code have three to four bytes a token, so this estimates too much."""
MAX_RUNS = 4096
_IMAGE = re.compile(rb"(?:iVBORw0KGgo|/9j/|R0lGOD|UklGR)[A-Za-z0-9+/=]{2048,}")
"""PNG, JPEG, GIF and WebP in base64. Their tokens follow from their pixels, not from their bytes."""
_IMAGE_BYTES = 12_500
"""What an image counts as: 5000 tokens, a guess on the high side."""


def text_size(body: bytes) -> int:
    """Return the bytes of a body as if each image had the same number."""
    if b"image/" not in body:  # its media type, wherever an API wants it; looking for images themselves takes ten times as long
        return max(1, len(body))
    images = [len(image[0]) for image in _IMAGE.finditer(body)]
    return max(1, len(body) - sum(images) + _IMAGE_BYTES * len(images))


@dataclass(slots=True)
class _Known:
    """What the last calls of a run to a model had."""

    a_byte: float | None = None
    """Tokens a byte."""
    kept: int = 0
    """Tokens that the provider keeps where the next call continues the last one."""


class InputEstimates:
    """The tokens a byte of each run's last calls. A run's calls grow by what the agent adds to one conversation."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def tokens(self, run: str, call: ModelCall, size: int) -> int:
        known = self._known.get((run, call.model), _NOTHING)
        a_byte = known.a_byte if known.a_byte is not None else 1 / BYTES_A_TOKEN
        return 1 + int(size * a_byte) + (known.kept if call.continues else 0)

    def learn(self, run: str, call: ModelCall, size: int, used: Tokens) -> None:
        """Take how many tokens the input of a call had."""
        if not used.input:
            return
        known = self._known.setdefault((run, call.model), _Known())
        if not call.continues:
            known.a_byte = used.input / size
        known.kept = used.input + used.output
        self._known.move_to_end((run, call.model))
        while len(self._known) > MAX_RUNS:
            self._known.popitem(last=False)


_NOTHING = _Known()
