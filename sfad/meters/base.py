"""What a meter is: bytes of a run's stdout in, what the agent said of its use out. Pure: no clock, no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..protocol.types import ApiTrouble, Tokens

MAX_LINE = 1 << 20
"""Bytes of a line that is read. An agent's events are far smaller; what is larger is the output of one of its tools."""
MAX_TOOLS = 64
"""Names kept in `Reading.tools`. The events of a run are published many times a second; who is slower sees the latest."""
MAX_NAME = 128
"""Characters of a model's or a tool's name: they go into the ledger and into events."""
MAX_WORDS = 300
"""Characters of `Reading.failed`: what fits into a line that says why a run ended."""


@dataclass(slots=True)
class Reading:
    """What an agent has said since its attempt began. It grows in place while the meter is fed."""

    turns: int | None = None
    """Tool calls; `None` until the stream tells anything of the kind, never a 0 that is a guess."""
    messages: int | None = None
    models: dict[str, Tokens] = field(default_factory=dict)
    """Tokens by model; under `""` where the agent does not name it."""
    cost_usd: float | None = None
    """As the agent itself reports it, of all tokens but the `uncovered` ones. It wins over a computed cost of the same tokens."""
    uncovered: dict[str, Tokens] = field(default_factory=dict)
    """Of `models`, what `cost_usd` does not cover: another program's cost covers all it has used, a line of `jsonl` only itself.
    Of no meaning while there is no cost."""
    partial: bool = False
    """Tokens and cost may still grow: something was begun whose final figures the agent has not told."""
    tools: list[str] = field(default_factory=list)
    """Names of the tools called since somebody last emptied this list, the last `MAX_TOOLS` of them."""
    finished: bool = False
    """The final result has been printed: the agent ought to exit now."""
    failed: str | None = None
    """The agent's own word that it failed, whatever its exit code; one line of at most `MAX_WORDS` characters."""
    trouble: ApiTrouble | None = None
    """The model has not answered since these calls of it failed."""
    skipped_lines: int = 0
    """Lines longer than `MAX_LINE` that looked as if they could hold usage, and were not read."""

    @property
    def blank(self) -> bool:
        """Whether nothing of the program's events has been recognised."""
        return self.turns is None and self.messages is None and not self.models and self.cost_usd is None and not self.finished

    @property
    def to_price(self) -> dict[str, Tokens]:
        """The tokens whose cost the agent has not told. What the attempt has cost is `cost_usd`, if it is known, and their price,
        if there are any and it is known; neither: unknown."""
        return self.models if self.cost_usd is None else self.uncovered


class Text(NamedTuple):
    """A whole part of a message to the user."""

    text: str


class Delta(NamedTuple):
    """More of the part that is being written."""

    text: str


class Break(NamedTuple):
    """A delta that follows begins another part."""


class Final(NamedTuple):
    """The final answer, which may have been printed as a part before."""

    text: str


class Failed(NamedTuple):
    """The agent failed, by its own words."""

    words: str


class Tool(NamedTuple):
    """A call of a tool."""

    name: Any
    about: Any = None
    """The arguments: an object, or the command."""


Speech = Text | Delta | Break | Final | Failed | Tool


class Meter(Protocol):
    """One attempt's stdout, read as it comes."""

    reading: Reading

    def feed(self, data: bytes | memoryview) -> None:
        """Takes the next bytes. Never raises for anything that an agent can print.

        A line counts when its newline has come. Feed one when the stdout has ended, and a last line without it counts too.
        """

    def dump(self) -> bytes:
        """All that it knows, its reading and the line that has begun among it: what another daemon goes on with. 100 bytes to
        some KB; 150 KB where ids of 1 024 messages are remembered, and as much more as the line that has begun is long."""


class Program(Protocol):
    """A kind of stream. Each module of this package that is listed in `meters.PROGRAMS` has one."""

    name: str
    """What `--meter` says."""
    tells_cost: bool
    """Whether its agent reports costs itself, of models too that have no price here."""

    @property
    def event_types(self) -> frozenset[str] | None:
        """The values of `type` by which a line of JSON is an event of the program, and not text; `None`: any."""

    def prints_events(self, argv: Sequence[str]) -> bool:
        """Whether this command line is the program's, and asks for the format that the meter reads."""

    def meter(self, argv: Sequence[str], saved: bytes | None = None) -> Meter:
        """A new meter for one attempt of this command; `saved`: one that goes on where the one was that dumped this.

        Raises `ValueError` for what is no such dump, as that of a build that knew other things."""

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """What an event says to the user, for `run --text` and `result`. Any field may be missing, or of any type."""
