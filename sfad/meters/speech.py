"""What an agent says to its user."""

from typing import Any, NamedTuple


class WholeText(NamedTuple):
    """A whole part of a message to the user."""

    text: str


class TextDelta(NamedTuple):
    """More of the part that is being written."""

    text: str


class TextBreak(NamedTuple):
    """The next delta begins another part."""


class FinalText(NamedTuple):
    """The final answer, which may have been printed as a part before."""

    text: str


class AgentFailure(NamedTuple):
    """The agent says that it failed."""

    words: str


class ToolCall(NamedTuple):
    """The agent calls a tool."""

    name: Any
    about: Any = None
    """The arguments: an object, or the command."""


Speech = WholeText | TextDelta | TextBreak | FinalText | AgentFailure | ToolCall
