"""What a meter reads, and the interface of a meter."""

from dataclasses import dataclass, field
from typing import Protocol

from ..protocol.kinds import COUNTS
from ..protocol.types import ApiTrouble, Tokens

MAX_LINE = 1 << 20
"""Bytes of the longest line that is read. An agent's events are far smaller; a larger line is the output of one of its tools."""
MAX_TOOLS = 64
"""Names kept in `Reading.tools`. The events of a run are published many times a second; a slower reader sees the latest names."""
MAX_NAME = 128
"""Characters of the name of a model or tool, which goes into the ledger and into events."""
MAX_WORDS = 300
"""Characters of `Reading.failed`, which must fit into the line that says why a run ended."""


@dataclass(slots=True)
class Reading:
    """What an agent has said since its attempt began. It grows in place while the meter is fed.

    A figure is `None` (or `models` is empty) until the agent tells it: an agent that tells its usage at its end has not used 0
    until then."""

    turns: int | None = None
    messages: int | None = None
    models: dict[str, Tokens] = field(default_factory=dict)
    cost_usd: float | None = None
    """The cost that the agent itself reports, of all tokens but the `uncovered` ones. It takes precedence over a computed cost of
    the same tokens."""
    uncovered: dict[str, Tokens] = field(default_factory=dict)
    """The part of `models` that `cost_usd` does not cover. The cost of a known program covers all its tokens, that of a `jsonl`
    line only the tokens of the line. Without meaning while `cost_usd` is `None`."""
    partial: bool = False
    """Tokens and cost may still grow: something has begun whose final figures the agent has not told."""
    session: str = ""
    """The agent's id of its session, by which its session file is found."""
    tools: list[str] = field(default_factory=list)
    """Names of the tools called since the reader last emptied this list, the last `MAX_TOOLS` of them."""
    finished: bool = False
    """The agent has printed its final result and is expected to exit now."""
    failed: str | None = None
    """Why the agent failed, in its own words, whatever its exit code; one line of at most `MAX_WORDS` characters."""
    trouble: ApiTrouble | None = None
    """The calls of the model that have failed since its last answer."""
    tier: str = ""
    """The provider's tier that the agent asks for, as far as that is not in `cost_usd`."""
    broken: bool = False
    """A call has ended without the end of its reply, by a lost connection or an interrupt. It may be billed, and no figure has all
    of it."""
    skipped_lines: int = 0
    """Lines longer than `MAX_LINE` that may have told usage, and were not read."""

    @property
    def blank(self) -> bool:
        """Whether the meter has recognised no event of its program."""
        counted = any(getattr(self, name) is not None for name in COUNTS)
        return not counted and not self.models and self.cost_usd is None and not self.finished

    @property
    def to_price(self) -> dict[str, Tokens]:
        """The tokens whose cost the agent has not told. The attempt has cost `cost_usd` plus their price, as far as these are
        known."""
        return self.models if self.cost_usd is None else self.uncovered


class Meter(Protocol):
    reading: Reading

    def feed(self, data: bytes | memoryview) -> None:
        """Read the next bytes. Never raises, whatever an agent prints.

        A line counts when its newline has come. Feed a newline when the stdout has ended, so that an incomplete last line counts.
        """

    def dump(self) -> bytes:
        """Return all that the meter knows, from which another daemon continues: its state, its reading and the line that has begun.
        Mostly less than a few KB; at most 150 KB (1 024 message ids) plus the line that has begun."""
