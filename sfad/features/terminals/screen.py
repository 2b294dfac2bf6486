"""What a terminal shows, from the bytes that were written to it: a model of xterm, as far as what
agent programs use of it. It imports the standard library only.

pyte (0.8.2) was looked at: it has no alternate screen, shows the content of strings such as Sixel
images, takes `CSI < u` for text, and needs four times as long.
"""

import codecs
import copy
import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple
from unicodedata import category, east_asian_width

# ---- Control sequences (ECMA-48)

_STRING = r"\x1b[]PX^_][^\x07\x1b\x18\x1a]*"
_CSI = r"\x1b\[[0-?]*[ -/]*"
TOKEN = re.compile(
    rf"(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
    rf"|(?P<csi>{_CSI}[@-~])"
    rf"|(?P<string>{_STRING}(?:\x07|\x1b\\|\x18|\x1a))"
    rf"|(?P<escape>\x1b[ -/]*[0-Z\\`-~])"
    rf"|(?P<broken>{_STRING}(?=\x1b[^\\])|{_CSI}(?=[^ -~])|\x1b[ -/]*(?=[^ -~])|\x1b)"
    r"|(?P<control>[\x00-\x1f\x7f-\x9f])",
    re.DOTALL,
)
"""What a stream is made of. A string and a sequence that are broken off are `broken`."""
UNFINISHED = re.compile(rf"(?:{_STRING}\x1b?|{_CSI}|\x1b[ -/]*)\Z", re.DOTALL)
"""A sequence at the end of a piece, whose rest comes with the next one."""
LONGEST = 1 << 20
"""Characters of a string. Of a longer one, the rest is taken for text."""


class Tokens:
    """Divides a stream of bytes into tokens, wherever its pieces are cut."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def __call__(self, data: bytes) -> Iterator[tuple[str, str]]:
        """Yield the kind and the text of each token that is whole."""
        text = self._rest + self._decode(data)
        end, self._rest = len(text), ""
        # a string may end with the two characters ESC and backslash, of which the first is here
        unfinished = UNFINISHED.search(text, max(0, text.rfind("\x1b", 0, -1)))
        if unfinished is not None and end - unfinished.start() < LONGEST:
            end, self._rest = unfinished.start(), text[unfinished.start() :]
        for found in TOKEN.finditer(text, 0, end):
            assert found.lastgroup is not None
            yield found.lastgroup, found.group()


# ---- What a person's terminal may be given of it

_MODES = frozenset({1, 5, 6, 7, 9, 12, 25, 45, 47, 66, 1000, 1002, 1003, 1004, 1005, 1006, 1007,
                    1015, 1016, 1047, 1048, 1049, 2004, 2026})  # fmt: skip
"""Private modes of keys, mouse, cursor and screen."""
_MOVES = frozenset("@ABCDEFGHIKLMPSTXZ`abdefgrsu")
LEAVE = (
    "\x1b[!p\x1b[?1049l\x1b[?9l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1005l\x1b[?1006l"
    "\x1b[?1015l\x1b[?1016l\x1b[?2004l\x1b[?2026l\x1b[?5l\x1b[?1l\x1b>\x1b[r\x1b(B"
    "\x0f\x1b[0 q\x1b[m\x1b[?25h"
)
"""Undoes what a terminal was given."""


class Harmless:
    """Makes of a stream what a person's terminal may be given: text, colours, and what moves within
    the screen. Left out are strings (titles, links, the clipboard, pictures, notifications),
    questions, which the terminal would answer as if the person had typed it (the holder answers
    them), what resizes, prints or records, other keyboards, and what deletes the scrollback."""

    def __init__(self, tokens: Tokens | None = None) -> None:
        """`tokens`: what has divided the stream so far."""
        self._tokens = tokens or Tokens()

    def __call__(self, data: bytes) -> bytes:
        return "".join([_harmless(*token) for token in self._tokens(data)]).encode()


def _harmless(kind: str, text: str) -> str:
    if kind == "text":
        return text
    if kind == "control":
        return text if text in "\a\b\t\n\v\f\r\x0e\x0f" else ""
    if kind == "escape":
        if text == "\x1bc":
            return f"{LEAVE}\x1b[2J\x1b[H"
        return text if text[1:] in _ESCAPES else ""
    return text if kind == "csi" and _is_harmless(text[2:-1], text[-1]) else ""


_ESCAPES = ("7", "8", "D", "E", "M", "H", "=", ">", "(0", "(B", "(A", ")0", ")B", ")A", "#8")


def _is_harmless(body: str, final: str) -> bool:
    if final in "hl":
        if body[:1] == "?":
            return all(mode in _MODE_WORDS for mode in body[1:].split(";"))
        return body == "4"
    if final == "J":
        return body.lstrip("?") in ("", "0", "1", "2")
    if final == "q":
        return body.endswith(" ")  # the shape of the cursor
    if final == "p":
        return body == "!"
    if body.strip("0123456789;:"):
        return final == "K" and body[:1] == "?"
    return final in _MOVES or final == "m"


_MODE_WORDS = frozenset(map(str, _MODES))


# ---- The width of characters


@lru_cache(4096)
def cells(character: str) -> int:
    """Return how many columns a character takes: 0, 1 or 2."""
    if category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


# ---- How a character looks

_BOLD, _DIM, _ITALIC, _UNDERLINE, _BLINK, _INVERSE, _HIDDEN, _STRUCK = (1 << n for n in range(8))
_ON = {
    1: _BOLD, 2: _DIM, 3: _ITALIC, 4: _UNDERLINE, 5: _BLINK, 6: _BLINK, 7: _INVERSE, 8: _HIDDEN,
    9: _STRUCK, 21: _UNDERLINE,
}  # fmt: skip
_OFF = {
    22: _BOLD | _DIM, 23: _ITALIC, 24: _UNDERLINE, 25: _BLINK, 27: _INVERSE, 28: _HIDDEN,
    29: _STRUCK,
}  # fmt: skip


class Look(NamedTuple):
    """Colours and style."""

    foreground: str = ""
    """As parameters of SGR: `31`, `38;5;208`, `38;2;1;2;3`; empty is the default."""
    background: str = ""
    style: int = 0

    def sgr(self) -> str:
        """Return the sequence that sets it, whatever was set before."""
        words = ["0", *(str(n) for n, bit in _ON.items() if n not in (6, 21) and self.style & bit)]
        return f"\x1b[{';'.join(filter(None, [*words, self.foreground, self.background]))}m"


PLAIN = Look()


@lru_cache(4096)
def _changed(look: Look, parameters: str) -> Look:
    foreground, background, style = look
    words = [[int(n or 0) for n in word.split(":")] for word in parameters.split(";")]
    at = 0
    while at < len(words):
        (number, *more), at = words[at], at + 1
        if number == 0:
            foreground, background, style = PLAIN
        elif number in _ON:
            style = style & ~_UNDERLINE if more[:1] == [0] else style | _ON[number]
        elif number in _OFF:
            style &= ~_OFF[number]
        elif 30 <= number <= 37 or 90 <= number <= 97:
            foreground = str(number)
        elif 40 <= number <= 47 or 100 <= number <= 107:
            background = str(number)
        elif number == 39:
            foreground = ""
        elif number == 49:
            background = ""
        elif number in (38, 48, 58):
            if more:
                colour = more[:1] + more[-3:] if more[0] == 2 else more[:2]
            else:
                length = 4 if words[at : at + 1] == [[2]] else 2
                colour = [word[0] for word in words[at : at + length]]
                at += length
            text = f"{number};" + ";".join(map(str, colour))
            if number == 38:
                foreground = text
            elif number == 48:
                background = text
    return Look(foreground, background, style)


# ---- Lines


class Line:
    """One row of cells."""

    __slots__ = ("characters", "closed", "looks", "wrapped")

    def __init__(self, columns: int, look: Look = PLAIN) -> None:
        self.characters = [" "] * columns
        """A wide character has an empty one after it."""
        self.looks = [look] * columns
        self.wrapped = False
        """The text goes on in the next line."""
        self.closed: list[str] = []
        """What an alternate screen had that a program left below this line."""

    @property
    def text(self) -> str:
        return "".join(self.characters).rstrip()

    def set_width(self, columns: int) -> None:
        more = columns - len(self.looks)
        if more > 0:
            self.characters += [" "] * more
            self.looks += [PLAIN] * more
        else:
            del self.characters[columns:], self.looks[columns:]
            if columns and cells(self.characters[-1][:1] or " ") == 2:
                self.characters[-1] = " "

    def erase(self, begin: int, end: int, look: Look) -> None:
        end = min(end, len(self.looks))
        if begin < end:
            self._split(begin)
            self._split(end)
            self.characters[begin:end] = [" "] * (end - begin)
            self.looks[begin:end] = [look] * (end - begin)

    def _split(self, at: int) -> None:
        """Leave no half of a wide character on either side."""
        if 0 < at < len(self.characters) and self.characters[at] == "":
            self.characters[at - 1] = self.characters[at] = " "

    def put(self, at: int, text: str, look: Look) -> None:
        """Put characters of one cell each."""
        end = at + len(text)
        self._split(at)
        self._split(end)
        self.characters[at:end] = text
        self.looks[at:end] = [look] * len(text)

    def put_wide(self, at: int, character: str, look: Look) -> None:
        self._split(at)
        self._split(at + 2)
        self.characters[at : at + 2] = [character, ""]
        self.looks[at : at + 2] = [look, look]

    def insert(self, at: int, count: int, look: Look) -> None:
        columns = len(self.looks)
        count = min(count, columns - at)
        self._split(at)
        self.characters[at:at] = [" "] * count
        self.looks[at:at] = [look] * count
        self.set_width(columns)

    def delete(self, at: int, count: int, look: Look) -> None:
        columns = len(self.looks)
        count = min(count, columns - at)
        self._split(at)
        self._split(at + count)
        del self.characters[at : at + count], self.looks[at : at + count]
        self.characters += [" "] * count
        self.looks += [look] * count

    def drawn(self, columns: int | None = None) -> str:
        """Return what draws it, or its first columns, from its first column on."""
        end = len(self.looks) if columns is None else min(columns, len(self.looks))
        if 0 < end < len(self.looks) and self.characters[end] == "":
            end -= 1
        while end and self.characters[end - 1] == " " and self.looks[end - 1] == PLAIN:
            end -= 1
        shown = zip(self.looks[:end], self.characters[:end], strict=True)
        return "".join(
            look.sgr() + "".join(character for _, character in run)
            for look, run in groupby(shown, key=lambda cell: cell[0])
        )


# ---- The screen

_CHARACTERS = dict(zip(map(ord, "`afgjklmnopqrstuvwxyz{|}~"),
                       "◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·", strict=True))  # fmt: skip
"""DEC's line drawing."""
_KEPT_MODES = (1, 9, 25, 66, 1000, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 2004)
"""Private modes that a viewer's terminal has to be in, too."""
_ALTERNATE = (47, 1047, 1049)


class Cursor(NamedTuple):
    row: int = 0
    column: int = 0
    past: bool = False
    """A character stands in the last column: the next one begins a line."""
    look: Look = PLAIN
    from_top: bool = False
    graphic: tuple[bool, bool] = (False, False)
    shift: int = 0


class Screen:
    """`left` is called with each line that leaves the screen at its top. `history`: how many of
    these are kept."""

    def __init__(
        self,
        rows: int = 24,
        columns: int = 80,
        *,
        history: int = 0,
        left: Callable[[Line], object] | None = None,
    ) -> None:
        self.rows, self.columns = rows, columns
        self.history: deque[Line] = deque(maxlen=history)
        self._left = left or self.history.append
        self._tokens = Tokens()
        self.reset()

    def reset(self) -> None:
        self.lines = self._blank()
        self._main: list[Line] | None = None
        """The main screen, while the alternate one is shown."""
        self._top, self._bottom = 0, self.rows - 1
        self._saved = {False: Cursor(), True: Cursor()}
        self.modes: set[int] = {7, 25}
        """Private modes that are set."""
        self._inserts = self._keypad = False
        self._tabs = set(range(0, 1024, 8))
        self._last = " "
        self._be(Cursor())

    def _blank(self) -> list[Line]:
        return [Line(self.columns) for _ in range(self.rows)]

    def _be(self, cursor: Cursor) -> None:
        self.row, self.column, self.past, self.look = cursor[:4]
        self._from_top, self._graphic, self._shift = cursor[4:]
        self.row, self.column = min(self.row, self.rows - 1), min(self.column, self.columns - 1)

    @property
    def alternate(self) -> bool:
        """Whether a program shows its own screen, which leaves the text as it was."""
        return self._main is not None

    @property
    def main(self) -> list[Line]:
        return self.lines if self._main is None else self._main

    def resize(self, rows: int, columns: int) -> None:
        if (rows, columns) == (self.rows, self.columns):
            return
        for lines in filter(None, (self.lines, self._main)):
            for line in lines:
                line.set_width(columns)
            shown = lines is self.lines
            while len(lines) > rows:
                if shown and self.row < len(lines) - 1 and not lines[-1].text:
                    lines.pop()
                    continue
                first = lines.pop(0)
                if shown:
                    self.row = max(self.row - 1, 0)
                if lines is self.main:
                    self._left(first)
            lines += [Line(columns) for _ in range(rows - len(lines))]
        self.rows, self.columns = rows, columns
        self._top, self._bottom, self.past = 0, rows - 1, False
        self.row, self.column = min(self.row, rows - 1), min(self.column, columns - 1)

    def feed(self, data: bytes) -> None:
        for kind, token in self._tokens(data):
            if kind == "text":
                self._print(token)
            elif kind == "csi":
                self._sequence(token)
            elif kind == "control":
                self._control(token)
            elif kind == "escape":
                self._escape(token)

    # Text.

    def _print(self, text: str) -> None:
        if self._graphic[self._shift]:
            text = text.translate(_CHARACTERS)
        if self._inserts or not text.isascii():
            for character in text:
                self._put(character)
            return
        self._last = text[-1]
        while text:
            if self.past:
                self._wrap()
            room = self.columns - self.column
            piece, text = text[:room], text[room:]
            self.lines[self.row].put(self.column, piece, self.look)
            self.column += len(piece)
            self._stay_in_line()
            if text and 7 not in self.modes:
                text = text[-1:]

    def _stay_in_line(self) -> None:
        if self.column >= self.columns:
            self.column, self.past = self.columns - 1, 7 in self.modes

    def _wrap(self) -> None:
        self.lines[self.row].wrapped = True
        self.column, self.past = 0, False
        self._next_line()

    def _put(self, character: str) -> None:
        width, line = cells(character), self.lines[self.row]
        if not width:
            at = self.column if self.past else self.column - 1
            while at > 0 and line.characters[at] == "":
                at -= 1
            if at >= 0 and len(line.characters[at]) < 16:
                line.characters[at] += character
            return
        if width > self.columns:
            return
        if self.past or self.column + width > self.columns:
            if 7 in self.modes:
                self._wrap()
                line = self.lines[self.row]
            else:
                self.column = self.columns - width
        if self._inserts:
            line.insert(self.column, width, self.look)
        if width == 2:
            line.put_wide(self.column, character, self.look)
        else:
            line.put(self.column, character, self.look)
        self._last = character
        self.column += width
        self._stay_in_line()

    # Controls.

    def _control(self, control: str) -> None:
        match control:
            case "\r":
                self.column, self.past = 0, False
            case "\n" | "\v" | "\f":
                self.past = False
                self._next_line()
            case "\b":
                self.column, self.past = max(self.column - 1, 0), False
            case "\t":
                after = (at for at in range(self.column + 1, self.columns) if at in self._tabs)
                self.column = next(after, self.columns - 1)
            case "\x0e" | "\x0f":
                self._shift = int(control == "\x0e")

    def _next_line(self) -> None:
        if self.row == self._bottom:
            self._scroll_up(1)
        elif self.row < self.rows - 1:
            self.row += 1

    def _line_before(self) -> None:
        if self.row == self._top:
            self._scroll_down(self._top, 1)
        elif self.row:
            self.row -= 1

    @property
    def _erased(self) -> Look:
        """How erased cells look: xterm gives them the background."""
        return Look(background=self.look.background) if self.look.background else PLAIN

    def _scroll_up(self, count: int, top: int | None = None) -> None:
        first = self._top if top is None else top
        for _ in range(min(count, self._bottom + 1 - first)):
            line = self.lines.pop(first)
            if first == 0 and top is None and self._main is None:
                self._left(line)
            self.lines.insert(self._bottom, Line(self.columns, self._erased))

    def _scroll_down(self, top: int, count: int) -> None:
        for _ in range(min(count, self._bottom + 1 - top)):
            del self.lines[self._bottom]
            self.lines.insert(top, Line(self.columns, self._erased))

    def _escape(self, escape: str) -> None:
        match escape[1:]:
            case "7":
                self._save()
            case "8":
                self._be(self._saved[self.alternate])
            case "D":
                self._next_line()
            case "E":
                self.column, self.past = 0, False
                self._next_line()
            case "M":
                self._line_before()
            case "H":
                self._tabs.add(self.column)
            case "=" | ">" as which:
                self._keypad = which == "="
            case "c":
                self.reset()
            case "(0" | "(A" | "(B" as which:
                self._graphic = which == "(0", self._graphic[1]
            case ")0" | ")A" | ")B" as which:
                self._graphic = self._graphic[0], which == ")0"
            case "#8":
                for line in self.lines:
                    line.put(0, "E" * self.columns, PLAIN)

    def _save(self) -> None:
        self._saved[self.alternate] = Cursor(
            self.row, self.column, self.past, self.look, self._from_top, self._graphic, self._shift
        )

    # Sequences.

    def _sequence(self, sequence: str) -> None:
        body, final = sequence[2:-1], sequence[-1]
        if (final == "m" and body[:1] not in "<=>?") or sequence == "\x1b[m":
            if not body.strip("0123456789;:"):
                self.look = _changed(self.look, body)
            return
        prefix = body[:1] if body[:1] in ("<", "=", ">", "?") else ""
        parameters = body[len(prefix) :]
        if parameters.strip("0123456789;:"):
            if body == "!" and final == "p":
                self._soft_reset()
            return
        numbers = [min(int(n.split(":")[0] or 0), 32767) for n in parameters.split(";")]
        if prefix == "?" and final in "hl":
            for number in numbers:
                self._set_mode(number, on=final == "h")
        elif prefix == "?" and final in "JK":
            prefix = ""
        if not prefix:
            self._carry_out(final, numbers)

    def _soft_reset(self) -> None:
        self._inserts = self._keypad = False
        self.modes = {7, 25}
        self._top, self._bottom, self.look = 0, self.rows - 1, PLAIN
        self._from_top, self._graphic, self._shift = False, (False, False), 0

    def _carry_out(self, final: str, numbers: list[int]) -> None:
        n, line = max(numbers[0], 1), self.lines[self.row]
        above = self._top if self.row >= self._top else 0
        below = self._bottom if self.row <= self._bottom else self.rows - 1
        origin = self._top if self._from_top else 0
        match final:
            case "A":
                self._move(max(self.row - n, above), self.column)
            case "B" | "e":
                self._move(min(self.row + n, below), self.column)
            case "C" | "a":
                self._move(self.row, self.column + n)
            case "D":
                self._move(self.row, self.column - n)
            case "E":
                self._move(min(self.row + n, below), 0)
            case "F":
                self._move(max(self.row - n, above), 0)
            case "G" | "`":
                self._move(self.row, n - 1)
            case "d":
                self._move(n - 1 + origin, self.column)
            case "H" | "f":
                column = max(numbers[1], 1) if len(numbers) > 1 else 1
                self._move(n - 1 + origin, column - 1)
            case "I":
                for _ in range(min(n, self.columns)):
                    self._control("\t")
            case "Z":
                for _ in range(min(n, self.columns)):
                    before = (at for at in range(self.column - 1, -1, -1) if at in self._tabs)
                    self._move(self.row, next(before, 0))
            case "J":
                self._erase_screen(numbers[0])
            case "K":
                begin = 0 if numbers[0] else self.column
                end = self.column + 1 if numbers[0] == 1 else self.columns
                line.erase(begin, end, self._erased)
                self.past = False
            case "L" | "M" if self._top <= self.row <= self._bottom:
                if final == "L":
                    self._scroll_down(self.row, n)
                else:
                    self._scroll_up(n, self.row)
                self._move(self.row, 0)
            case "S":
                self._scroll_up(n)
            case "T" if len(numbers) == 1:
                self._scroll_down(self._top, n)
            case "@":
                line.insert(self.column, n, self._erased)
            case "P":
                line.delete(self.column, n, self._erased)
            case "X":
                line.erase(self.column, self.column + n, self._erased)
            case "b":
                self._print(self._last * min(n, self.rows * self.columns))
            case "g":
                self._tabs = self._tabs - {self.column} if not numbers[0] else set()
            case "h" | "l" if 4 in numbers:
                self._inserts = final == "h"
            case "r":
                bottom = numbers[1] if len(numbers) > 1 and numbers[1] else self.rows
                if n < min(bottom, self.rows):
                    self._top, self._bottom = n - 1, min(bottom, self.rows) - 1
                    self._move(self._top if self._from_top else 0, 0)
            case "s":
                self._save()
            case "u":
                self._be(self._saved[self.alternate])

    def _move(self, row: int, column: int) -> None:
        if self._from_top:
            row = min(max(row, self._top), self._bottom)
        self.row = min(max(row, 0), self.rows - 1)
        self.column = min(max(column, 0), self.columns - 1)
        self.past = False

    def _erase_screen(self, which: int) -> None:
        look, line = self._erased, self.lines[self.row]
        if which == 0:
            line.erase(self.column, self.columns, look)
        elif which == 1:
            line.erase(0, self.column + 1, look)
        elif which == 3:
            return  # the scrollback, of which a person wants to read what was there
        begin, end = (self.row + 1, self.rows) if which == 0 else (0, self.row)
        for row in range(*((0, self.rows) if which == 2 else (begin, end))):
            self.lines[row] = Line(self.columns, look)
        self.past = False

    def _set_mode(self, mode: int, *, on: bool) -> None:
        if mode in _ALTERNATE:
            self._show_alternate(mode, on=on)
        elif mode == 1048:
            if on:
                self._save()
            else:
                self._be(self._saved[self.alternate])
        elif mode == 6:
            self._from_top = on
            self._move(self._top if on else 0, 0)
        elif on:
            self.modes.add(mode)
        else:
            self.modes.discard(mode)

    def _show_alternate(self, mode: int, *, on: bool) -> None:
        if on and self._main is None:
            if mode == 1049:
                self._save()
            self._main, self.lines = self.lines, self._blank()
        elif not on and self._main is not None:
            closed, self.lines, self._main = self.text(), self._main, None
            if mode == 1049:
                self._be(self._saved[False])
            self.lines[max(self.row - 1, 0)].closed = closed
        self._top, self._bottom = 0, self.rows - 1

    # What there is.

    def text(self) -> list[str]:
        """Return the lines of the screen without blanks at their ends."""
        return [line.text for line in self.lines]

    def follower(self) -> Harmless:
        """Return what makes harmless the bytes that come after those that this screen has, which
        may have ended within a sequence or a character."""
        return Harmless(copy.deepcopy(self._tokens))

    def drawn(self, rows: int | None = None, columns: int | None = None) -> bytes:
        """Return what makes an empty terminal of this size show the same, and be in the same
        modes; and a terminal of another size the part around the cursor."""
        if (rows, columns) not in ((None, None), (self.rows, self.columns)):
            return self._part(rows or self.rows, columns or self.columns)
        parts = ["\x1b[m\x1b[?7l", _drawn(self.main)]
        if self._main is not None:
            row, column, _, look, *_ = self._saved[False]
            parts += [f"\x1b[{row + 1};{column + 1}H{look.sgr()}\x1b[?1049h\x1b[m\x1b[2J"]
            parts += [_drawn(self.lines)]
        parts.append("\x1b[?7h" if 7 in self.modes else "")
        if (self._top, self._bottom) != (0, self.rows - 1):
            parts.append(f"\x1b[{self._top + 1};{self._bottom + 1}r")
        row = self.row - self._top if self._from_top else self.row
        parts.append("\x1b[?6h" if self._from_top else "")
        parts.append(f"\x1b[{row + 1};{self.column + 1}H")
        if self.past:  # the character in the last column is drawn again
            line = self.lines[self.row]
            parts += [line.looks[-1].sgr(), line.characters[-1]]
        for number in _KEPT_MODES:
            if (number in self.modes) != (number == 25):
                parts.append(f"\x1b[?{number}{'h' if number in self.modes else 'l'}")
        parts += ["\x1b=" if self._keypad else "", "\x1b[4h" if self._inserts else ""]
        parts += ["\x1b(0" if self._graphic[0] else "", self.look.sgr()]
        return "".join(parts).encode()

    def _part(self, rows: int, columns: int) -> bytes:
        first = max(0, self.row - rows + 1)
        column = min(self.column, columns - 1) + 1
        shown = _drawn(self.lines[first : first + rows], columns)
        cursor = f"\x1b[{self.row - first + 1};{column}H\x1b[?25{'h' if 25 in self.modes else 'l'}"
        keys = "".join(f"\x1b[?{each}h" for each in (1, 2004) if each in self.modes)
        return f"\x1b[m\x1b[?7l{shown}\x1b[?7h{keys}{cursor}".encode()


def _drawn(lines: list[Line], columns: int | None = None) -> str:
    shown = ((row, line.drawn(columns)) for row, line in enumerate(lines, 1))
    return "".join(f"\x1b[{row};1H{text}\x1b[m" for row, text in shown if text)
