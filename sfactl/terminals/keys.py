"""What keys send: `y<Enter>`, `<C-c>`, `<Up>`."""

import re

_NAMED = {
    "enter": b"\r", "return": b"\r", "cr": b"\r", "tab": b"\t", "esc": b"\x1b", "escape": b"\x1b",
    "space": b" ", "bs": b"\x7f", "backspace": b"\x7f", "lt": b"<", "gt": b">",
    "up": b"\x1b[A", "down": b"\x1b[B", "right": b"\x1b[C", "left": b"\x1b[D",
    "home": b"\x1b[H", "end": b"\x1b[F", "insert": b"\x1b[2~", "delete": b"\x1b[3~",
    "del": b"\x1b[3~", "pageup": b"\x1b[5~", "pagedown": b"\x1b[6~", "s-tab": b"\x1b[Z",
    "f1": b"\x1bOP", "f2": b"\x1bOQ", "f3": b"\x1bOR", "f4": b"\x1bOS", "f5": b"\x1b[15~",
    "f6": b"\x1b[17~", "f7": b"\x1b[18~", "f8": b"\x1b[19~", "f9": b"\x1b[20~", "f10": b"\x1b[21~",
    "f11": b"\x1b[23~", "f12": b"\x1b[24~",
}  # fmt: skip
NAMES = "Enter, Tab, S-Tab, Esc, Space, BS, Del, Insert, Up, Down, Left, Right, Home, End, PageUp, "
NAMES += "PageDown, F1 to F12, lt, gt, C-x (Ctrl) and M-x (Alt)"


def sent_by(text: str) -> bytes:
    """Return the bytes that keys send: characters as they are, and names of keys in `<` and `>`.
    Raise `ValueError` for an unknown name."""
    parts = re.split(r"<([^<>]+)>", text)
    return b"".join(_named(each) if at % 2 else each.encode(errors="surrogateescape")
                    for at, each in enumerate(parts))  # fmt: skip


def _named(name: str) -> bytes:
    key = name.lower()
    if (found := _NAMED.get(key)) is not None:
        return found
    modifier, _, rest = name.partition("-")
    if modifier in ("M", "m", "A", "a") and rest:
        return b"\x1b" + (rest.encode() if len(rest) == 1 else _named(rest))
    if modifier in ("C", "c") and len(rest) == 1:
        code = ord(rest.upper())
        if rest == "?":
            return b"\x7f"
        if 0x40 <= code <= 0x5F:
            return bytes([code & 0x1F])
    if key in ("c-space", "c-@"):
        return b"\0"
    raise ValueError(f"unknown key <{name[:40]}>; keys are {NAMES}; <lt> is the character <")


def one_key(text: str) -> bytes:
    """Return the byte that one key sends, named with or without `<` and `>`. Raise `ValueError`."""
    sent = sent_by(text if text.startswith("<") or len(text) == 1 else f"<{text}>")
    if len(sent) != 1:
        raise ValueError(f"{text!r} is not one key such as C-] or C-b")
    return sent


def name_of(key: bytes) -> str:
    """Return the name of a key that sends one byte."""
    code = key[0]
    return f"Ctrl-{chr(code | 0x40)}" if code < 0x20 else key.decode(errors="replace")
