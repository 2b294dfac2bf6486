"""The contract of each holder: the image for x86_64, what this compiler makes of its source, and
the one in Python."""

from __future__ import annotations

import fcntl
import os
import platform
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfad.features.terminals import image
from sfad.features.terminals.holding import sizing, typing
from sfad.features.terminals.recorded import entries, sizes
from tests.features.terminals.holder_image import compiled, source
from tests.harness import PATIENCE, wait_until
from tests.tiers import variant

KINDS = [
    "image",
    pytest.param("compiled", marks=pytest.mark.needs("cc")),
    pytest.param("python", marks=variant),
]


class Bench:
    def __init__(self, kind: str, place: Path) -> None:
        if kind == "python":
            words = [
                sys.executable,
                "-I",
                "-S",
                str(Path(image.__file__).with_name("in_python.py")),
            ]
        else:
            if platform.machine() != "x86_64":
                pytest.skip("the image is for x86_64")
            program = place / "holder"
            program.write_bytes(compiled().image if kind == "compiled" else image.IMAGE)
            program.chmod(0o755)
            words = [str(program)]
        master, self.slave = os.openpty()
        tty.setraw(self.slave)
        os.set_blocking(master, False)
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("=4H", 10, 40, 0, 0))
        self.output, self.record = place / "out", place / "record"
        os.mkfifo(place / "orders")
        orders = os.open(place / "orders", os.O_RDWR | os.O_NONBLOCK)
        out, record = (os.open(each, os.O_WRONLY | os.O_APPEND | os.O_CREAT) for each in
                       (self.output, self.record))  # fmt: skip
        given = [master, out, orders, record]

        def arrange() -> None:
            for number, each in enumerate([fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in given]):
                os.dup2(each, number)
            os.closerange(4, 64)

        self.process = subprocess.Popen(words, close_fds=False, preexec_fn=arrange, env={})
        for each in (master, out, record):
            os.close(each)
        self.orders = orders

    def order(self, *orders: bytes) -> None:
        for each in orders:
            os.write(self.orders, each)

    def shows(self, data: bytes) -> None:
        os.write(self.slave, data)

    def kept(self, data: bytes) -> None:
        wait_until(lambda: self.output.read_bytes() == data, f"{data!r} is kept")

    def reads(self, wanted: bytes) -> bytes:
        """Read what is typed, until it is so much."""
        found, end = b"", time.monotonic() + PATIENCE
        while len(found) < len(wanted) and time.monotonic() < end:
            if select.select([self.slave], [], [], 0.1)[0]:
                found += os.read(self.slave, 65536)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for each in (self.slave, self.orders):
            if each >= 0:
                os.close(each)


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(request.param, tmp_path)
    yield made
    made.close()


def test_it_keeps_and_types(bench: Bench) -> None:
    bench.shows(b"hello\r\n\xff\x00\x1b[31m")
    bench.kept(b"hello\r\n\xff\x00\x1b[31m")
    data = bytes(range(256)) * 100
    orders = typing(data)
    assert max(map(len, orders)) <= select.PIPE_BUF
    found = b""
    for each in orders:
        bench.order(each)
        found += bench.reads(each[3:])
    assert found == data


ANSWERS = [
    (b"\x1b[6n", b"\x1b[1;1R"),
    (b"ab\r\ncd\x1b[6n", b"\x1b[2;3R"),
    (b"\x1b[5;7H\x1b[?6n", b"\x1b[?5;7R"),
    (b"x" * 45 + b"\x1b[6n", b"\x1b[2;6R"),
    (b"x" * 40 + b"\x1b[6n", b"\x1b[1;40R"),
    ("中文".encode() + b"\x1b[6n", b"\x1b[1;5R"),
    (b"\n" * 30 + b"\x1b[6n", b"\x1b[10;1R"),
    (b"\x1b[99;99H\x1b[6n", b"\x1b[10;40R"),
    (b"\x1b[5;5H\x1b[?1049h\x1b[H\x1b[?1049l\x1b[6n", b"\x1b[5;5R"),
    (b"\x1b]0;a title\x07x\x1b[6n", b"\x1b[1;2R"),
    (b"\x1bPq~~\x1b\\x\x1b[6n", b"\x1b[1;2R"),
    (b"\x1b[3;6r\x1b[6;1H\n\n\x1b[6n", b"\x1b[6;1R"),
    (b"\x1b[4;4H\x1b7\x1b[H\x1b8\x1b[2A\x1b[C\x1b[6n", b"\x1b[2;5R"),
    (b"\ta\x1b[6n", b"\x1b[1;10R"),
    (b"\x1b[5n", b"\x1b[0n"),
    (b"\x1b[c", b"\x1b[?62;22c"),
    (b"\x1b[0c", b"\x1b[?62;22c"),
    (b"\x1b[>c", b"\x1b[>0;10;0c"),
    (b"\x1b[?2026$p", b"\x1b[?2026;0$y"),
    (b"\x1b[18t", b"\x1b[8;10;40t"),
]


@pytest.mark.parametrize(("asked", "answer"), ANSWERS, ids=repr)
def test_it_answers(bench: Bench, asked: bytes, answer: bytes) -> None:
    bench.shows(asked)
    assert bench.reads(answer) == answer
    bench.kept(asked)


def test_its_size_changes(bench: Bench) -> None:
    bench.shows(b"before")
    bench.kept(b"before")
    bench.order(sizing(20, 90))
    wait_until(lambda: os.get_terminal_size(bench.slave) == (90, 20), "the program sees it")
    bench.shows(b"\x1b[15;80H\x1b[6n")
    assert bench.reads(b"\x1b[15;80R") == b"\x1b[15;80R"
    with open(bench.record, "rb") as file:
        first, *more = entries(file.fileno())
        changes = sizes(file.fileno())
    assert first[1:] == (0, 10, 40)
    assert [each[1:] for each in changes] == [(0, 10, 40), (6, 20, 90)]
    assert all(each.milliseconds >= first.milliseconds for each in more)


def test_it_ends_with_the_last_that_has_the_terminal(bench: Bench) -> None:
    bench.shows(b"last words" * 1000)
    os.close(bench.slave)
    bench.slave = -1
    assert bench.process.wait(PATIENCE) == 0
    bench.kept(b"last words" * 1000)


def test_it_ends_when_it_is_told(bench: Bench) -> None:
    bench.process.send_signal(signal.SIGSTOP)
    bench.shows(b"unread")
    bench.order(b"e")
    bench.process.send_signal(signal.SIGCONT)
    assert bench.process.wait(PATIENCE) == 0
    bench.kept(b"unread")


def test_what_is_not_read_keeps_no_output_waiting(bench: Bench) -> None:
    """A program that prints much and reads nothing of what is typed meanwhile."""
    for each in typing(b"k" * 40000):
        bench.order(each)
    data = b"0123456789abcdef" * 65536
    written = 0
    while written < len(data):
        written += os.write(bench.slave, data[written : written + 4096])
    bench.kept(data)
    assert bench.reads(b"k" * 40000) == b"k" * 40000


def test_a_flood_of_questions(bench: Bench) -> None:
    bench.shows(b"\x1b[6n" * 3000)
    bench.kept(b"\x1b[6n" * 3000)
    assert bench.reads(b"\x1b[1;1R").startswith(b"\x1b[1;1R")
    while select.select([bench.slave], [], [], 0.2)[0]:
        os.read(bench.slave, 65536)
    bench.order(*typing(b"still here"))
    assert bench.reads(b"still here") == b"still here"


def test_the_image_is_of_this_source() -> None:
    assert source() == image.SOURCE, "holder.c has changed: make trampoline"


@pytest.mark.needs("cc")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the image is for x86_64")
def test_the_same_compiler_makes_the_same_image() -> None:
    made = compiled()
    if made.compiler == image.COMPILER:
        assert made == (image.COMPILER, image.SOURCE, image.IMAGE)
