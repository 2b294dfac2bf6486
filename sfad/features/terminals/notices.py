"""What programs tell a person through a terminal: the bell, notifications, titles. Pure."""

import re
from typing import Literal, NamedTuple

from ...protocol.texts.redaction import redacted
from ...protocol.texts.sanitise import clean
from .screen import Tokens

MOST_CHARACTERS = 200
"""Of what a program says."""
_TITLE = re.compile(
    r"✋|action required|waiting for (?:you|input|approval|confirmation)"
    r"|(?:needs|requires) (?:you|input|attention|permission|approval)",
    re.IGNORECASE,
)
"""A title that asks for a person: Gemini CLI 0.61 shows `✋  Action Required`."""
_OSC = re.compile(r"\x1b\]([0-9]+);(.*?)(?:\x07|\x1b\\)?\Z", re.DOTALL)
_PROGRESS = re.compile(r"4;[0-4](?:;|\Z)")
"""OSC 9;4 of ConEmu: a share that is done."""


class Notice(NamedTuple):
    source: Literal["bell", "notification", "title"]
    words: str = ""


class Notices:
    """Finds them in a stream of bytes, wherever its pieces are cut."""

    def __init__(self) -> None:
        self._tokens = Tokens()

    def __call__(self, data: bytes) -> Notice | None:
        """Return the last notice in a piece. One with words counts for more than the bell."""
        found: Notice | None = None
        for kind, text in self._tokens(data):
            if kind == "control" and text == "\x07":
                found = found or Notice("bell")
            elif kind == "string" and (told := _told(text)) is not None:
                found = told
        return found


def _told(text: str) -> Notice | None:
    match = _OSC.match(text)
    if match is None:
        return None
    number, words = match.groups()
    if number in ("0", "2"):
        return Notice("title", _short(words)) if _TITLE.search(words) else None
    if number == "9" and not _PROGRESS.match(words):  # of iTerm2
        return Notice("notification", _short(words))
    if number == "777" and words.startswith("notify;"):  # of rxvt-unicode: title;body
        return Notice("notification", _short(words.split(";", 1)[1].replace(";", ": ", 1)))
    if number == "99":  # of kitty: metadata;payload
        metadata, _, payload = words.partition(";")
        if ":p=" not in f":{metadata}" or "p=body" in metadata or "p=title" in metadata:
            return Notice("notification", _short(payload))
    return None


def _short(words: str) -> str:
    return redacted(" ".join(clean(words.encode()).split()))[:MOST_CHARACTERS]
