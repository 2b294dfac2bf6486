"""What a terminal shows, compared with pyte and with tmux, and what of it a person's terminal may
be given."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pyte
import pytest

from sfad.features.terminals.screen import LEAVE, Harmless, Screen
from tests.harness import wait_until
from tests.together import together

ROWS, COLUMNS = 10, 30

DANCES = {
    "text": b"hello\r\nworld",
    "a long line": b"x" * 95 + b"y",
    "the last column": b"x" * 30 + b"\r\nnext",
    "a cursor that moves": b"\x1b[5;10Hhere\x1b[2A\x1b[3Dup\x1b[Bdown\x1b[Hfirst",
    "erased": b"abcdef\r\nghijkl\x1b[3D\x1b[K\x1b[A\x1b[1K\x1b[2;1H\x1b[J",
    "inserted and deleted": b"abcdef\x1b[4D\x1b[2@XY\x1b[P\x1b[H\x1b[2L\x1b[3;1H\x1b[M\x1b[2X",
    "a region that scrolls": b"\x1b[3;6r\x1b[6;1Ha\nb\nc\nd\n\x1b[3;1H\x1bMtop\x1b[r",
    "scrolled": b"".join(b"%d\r\n" % n for n in range(15)) + b"\x1b[2S\x1b[T",
    "tabs": b"\ta\tb\r\n\x1b[3g\tc",
    "wide characters": "中文字 a\x1b[3;29H中文".encode(),
    "half of a wide character": "中文字\x1b[1;2Hx\x1b[1;5Hy".encode(),
    "accents": "e\u0301 a\u0308!".encode(),
    "saved": b"one\x1b7\x1b[5;5Htwo\x1b8three",
    "without wrap": b"\x1b[?7l" + b"0123456789" * 4 + b"\x1b[?7h",
    "line drawing": b"\x1b(0lqk\x1b(B lqk",
    "repeated": b"ab\x1b[5b",
    "another screen": b"main\x1b[?1049h\x1b[2J\x1b[3;3Hother\x1b[?1049l back",
    "the other screen": b"main\x1b[?1049h\x1b[2J\x1b[3;3Hother",
    "strings": b"\x1b]0;title\x07a\x1bP1$r0m\x1b\\b\x1b_Gx\x1b\\c\x1b]52;c;aGk=\x1b\\d",
    "other keyboards": b"\x1b[>1u\x1b[<u\x1b[>4;2mx\x1b[?1uy",
    "reset": b"junk\x1b[3;5r\x1bcfresh",
}


def shown(data: bytes) -> Screen:
    screen = Screen(ROWS, COLUMNS)
    screen.feed(data)
    return screen


@together("name", DANCES)
def test_pieces_do_not_matter(name: str) -> None:
    whole, pieces = shown(DANCES[name]), Screen(ROWS, COLUMNS)
    for at in range(len(DANCES[name])):
        pieces.feed(DANCES[name][at : at + 1])
    assert pieces.text() == whole.text()


@together("name", DANCES)
def test_what_is_drawn_again_is_the_same(name: str) -> None:
    screen = shown(DANCES[name])
    again = shown(b"\x1b[H\x1b[2J" + screen.drawn())
    for more in (b"", b"Z", b"\r\nq", b"\x1b[?1049l!"):
        screen.feed(more)
        again.feed(more)
        assert again.text() == screen.text()
        assert [line.looks for line in again.lines] == [line.looks for line in screen.lines]


_OF_PYTE = ("text", "a long line", "the last column", "a cursor that moves", "erased", "saved",
            "a region that scrolls", "tabs", "without wrap")  # fmt: skip


@pytest.mark.parametrize("name", _OF_PYTE)
def test_pyte_shows_the_same(name: str) -> None:
    other = pyte.Screen(COLUMNS, ROWS)
    pyte.ByteStream(other).feed(DANCES[name])
    assert shown(DANCES[name]).text() == [line.rstrip() for line in other.display]


_NOT_OF_TMUX = ("half of a wide character", "line drawing")
"""tmux prints the other half, too, and the letters of the drawing."""


@pytest.mark.needs("tmux")
@pytest.mark.parametrize("name", [name for name in DANCES if name not in _NOT_OF_TMUX])
def test_tmux_shows_the_same(name: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(DANCES[name])
    tmux = [str(shutil.which("tmux")), "-S", str(tmp_path / "s"), "-f", "/dev/null"]
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}

    def told(*words: str) -> str:
        done = subprocess.run([*tmux, *words], env=env, capture_output=True, text=True, check=True)
        return done.stdout

    command = f"stty raw; cat {data}; touch {tmp_path}/done; exec sleep 600"
    told("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), command)
    try:
        wait_until((tmp_path / "done").exists, "it is written")
        ours = "\n".join(shown(DANCES[name]).text()).rstrip()
        wait_until(lambda: _text(told("capture-pane", "-p")) == ours, f"tmux shows {ours!r}")
    finally:
        told("kill-server")


def _text(captured: str) -> str:
    return "\n".join(line.rstrip() for line in captured.split("\n")).rstrip()


def test_looks() -> None:
    screen = shown(
        b"\x1b[1;31ma\x1b[38;5;208mb\x1b[38;2;1;2;3;48;5;7mc\x1b[4:3md\x1b[0;7me\x1b[27mf"
    )
    looks = [look.sgr() for look in screen.lines[0].looks[:6]]
    assert looks == [
        "\x1b[0;1;31m", "\x1b[0;1;38;5;208m", "\x1b[0;1;38;2;1;2;3;48;5;7m",
        "\x1b[0;1;4;38;2;1;2;3;48;5;7m", "\x1b[0;7m", "\x1b[0m",
    ]  # fmt: skip


def test_noise_breaks_nothing() -> None:
    """Whatever is written, the screen keeps its size, and its cursor stays in it."""
    noise = random.Random(1)
    alphabet = [b"\x1b", b"[", b"]", b"?", b";", b"1", b"49", b"h", b"l", b"H", b"J", b"r", b"m",
                b"\xe4\xb8\xad", b"\xff", b"x" * 7, b"\n", b"\r", b"L", b"M", b"@", b"P", b"\\",
                b"\x07", b"99999", b"S", b"T", b"6", b"7", b"c", b"\t", b"\x18", b"b"]  # fmt: skip
    for _ in range(300):
        screen = Screen(ROWS, COLUMNS)
        for _ in range(60):
            screen.feed(b"".join(noise.choices(alphabet, k=6)))
            if noise.random() < 0.05:
                screen.resize(noise.randrange(1, 12), noise.randrange(1, 40))
        assert len(screen.lines) == screen.rows
        assert {len(line.characters) for line in screen.lines} == {screen.columns}
        assert 0 <= screen.row < screen.rows
        assert 0 <= screen.column < screen.columns


HOSTILE = [
    b"\x1b]0;title\x07", b"\x1b]2;title\x1b\\", b"\x1b]52;c;ZXZpbA==\x07",
    b"\x1b]8;;http://evil\x07",     b"\x1b]4;1;?\x07", b"\x1b]10;?\x07", b"\x1b]11;?\x1b\\",
    b"\x1b]9;notify\x07", b"\x1b]777;n;a;b\x07",     b"\x1b]1337;File=:AAAA\x07",
    b"\x1b]7;file:///\x07", b"\x1b]133;A\x07", b"\x1bP+q544e\x1b\\",     b"\x1bP$qm\x1b\\",
    b"\x1bPq#0;2;0;0;0~\x1b\\", b"\x1b_Ga=T;AAAA\x1b\\", b"\x1b^pm\x1b\\",     b"\x1bXsos\x1b\\",
    b"\x1b[c", b"\x1b[>c", b"\x1b[=c", b"\x1b[5n", b"\x1b[6n", b"\x1b[?6n",     b"\x1b[?15n",
    b"\x1b[>q", b"\x1b[?2026$p", b"\x1b[4$p", b"\x1b[x", b"\x1b[18t",
    b"\x1b[21t",     b"\x1b[8;50;200t", b"\x1b[3;0;0t", b"\x1b[2t", b"\x1b[22;0t", b"\x1b[5i",
    b"\x1b[4i", b"\x1b[?5i",     b"\x1b[3J", b"\x1b[?3h", b"\x1b[?40h", b"\x1b[?1049;3h",
    b"\x1b[>4;2m", b"\x1b[>1u", b"\x1b[=1u",     b"\x1b[?u", b"\x1b[2h", b"\x1b[12h", b"\x1b[20h",
    b"\x1b[1*y", b"\x1b[1$w", b"\x1b[#|", b"\x1b[61\"p",     b"\x1b#3", b"\x1b#6", b"\x1bZ",
    b"\x1bn", b"\x1b%@", b"\x05", b"\x9b6n", b"\x1b[1#q", b"\x1b[?1;2S",     b"\x1b[1;1;5;5;1${",
    b"\x1b[?2;0;0c", b"\xc2\x9b6n", b"\xc2\x9d0;t\xc2\x9c",
]  # fmt: skip
"""Sequences of xterm, kitty, iTerm2, WezTerm and VT terminals that do something outside of the
screen, answer, or change what later characters mean."""


@together("sequence", HOSTILE)
def test_no_sequence_leaves_the_screen(sequence: bytes) -> None:
    """Nothing of it is left, wherever it is cut."""
    for at in range(len(sequence) + 1):
        harmless = Harmless()
        given = harmless(b"a" + sequence[:at]) + harmless(sequence[at:] + b"b")
        assert b"\x1b" not in given
        assert b"\x9b" not in given.replace("\ufffd".encode(), b"")
        assert given.startswith(b"a")
        assert given.endswith(b"b")


def test_strings_without_an_end() -> None:
    harmless = Harmless()
    given = b"".join(harmless(piece) for piece in [b"a\x1b]52;c;", b"AAAA" * 100, b"\x1b[31mred"])
    assert given == b"a\x1b[31mred"


def test_what_follows_a_screen_goes_on_where_that_ends() -> None:
    """Within a sequence, or a character."""
    for data in (b"\x1b[31mred", b"\x1b]0;title\x07text", "ü日".encode()):
        for at in range(len(data)):
            screen = Screen(ROWS, COLUMNS)
            screen.feed(data[:at])
            rest = screen.follower()(data[at:])
            screen.feed(data[at:])
            whole = Harmless()(data)
            assert whole.endswith(rest)
            assert b"title" not in rest
            assert len(rest) + at >= len(whole)


def test_what_stays_within_passes() -> None:
    data = b"\x1b[1;31mred\x1b[0m\x1b[5;5H\x1b[2J\x1b[?1049h\x1b[?25l"
    data += b"\x1b[3;9r\x1bM\x1b(0q\x1b(B\x1b[2 q\r\n"
    assert Harmless()(data) == data
    assert Harmless()(b"\x1bc") == LEAVE.encode() + b"\x1b[2J\x1b[H"
