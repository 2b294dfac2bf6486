"""The line in which a person types: an answer to a question, and what is done with it."""

from collections.abc import Callable
from dataclasses import dataclass, field

MAX_LENGTH = 500


@dataclass
class Prompt:
    """A question with the answer as typed so far.

    Keys are taken one after the other by the caller, however fast they come. While the daemon is asked, they are kept, and typed
    once it has answered."""

    question: str
    submit: Callable[[str], None]
    """Called with the whole answer."""
    text: str = ""
    yes_or_no: bool = False
    """One key answers: y, or anything else for no."""
    offered: str = ""
    """The beginning of an answer, as `cost=`. Typing a digit continues it, typing a letter replaces it."""
    changed: Callable[[str], None] | None = None
    """Called with the answer after each key."""
    at: int = -1
    """Where the next character goes."""
    asking: bool = False
    early: list[tuple[str, str | None]] = field(default_factory=list)
    """Keys that came while the daemon was asked."""

    def __post_init__(self) -> None:
        self.text = self.text or self.offered
        self.at = len(self.text)

    def type(self, text: str) -> None:
        """Insert printable text at the cursor."""
        clean = "".join(c for c in text.replace("\t", " ") if c.isprintable())
        if self.offered and clean[:1].isalpha():
            self._set("", 0)
        clean = clean[: MAX_LENGTH - len(self.text)]
        self._set(self.text[: self.at] + clean + self.text[self.at :], self.at + len(clean))

    def edit(self, key: str) -> bool:
        """Move the cursor or delete. Return whether the key means that."""
        text, at = self.text, self.at
        match key:
            case "left":
                at -= 1
            case "right":
                at += 1
            case "home" | "ctrl+a":
                at = 0
            case "end" | "ctrl+e":
                at = len(text)
            case "backspace" | "ctrl+h":
                text, at = text[: max(at - 1, 0)] + text[at:], at - 1
            case "delete" | "ctrl+d":
                text = text[:at] + text[at + 1 :]
            case "ctrl+u":
                text, at = text[at:], 0
            case "ctrl+w":
                kept = text[:at].rstrip().rpartition(" ")
                left = kept[0] + kept[1]
                text, at = left + text[at:], len(left)
            case _:
                return False
        self._set(text, at)
        return True

    def _set(self, text: str, at: int) -> None:
        self.offered = ""
        self.at = min(max(at, 0), len(text))
        if text != self.text:
            self.text = text
            if self.changed is not None:
                self.changed(text)
