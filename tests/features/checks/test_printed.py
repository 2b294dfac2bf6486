"""The files with what checks have printed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sfad.durable.maintenance import Old
from sfad.features.checks.printed import LINES, MOST_IN_LINE, Printed
from sfad.storage.output.truncated import Truncation

KEY = (1, 2)


def written(printed: Printed, data: bytes) -> None:
    descriptor = printed.new("a1", KEY, None)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def test_the_last_lines_are_told_without_control_characters(tmp_path: Path) -> None:
    printed = Printed(tmp_path / "checks")
    assert printed.last_lines("a1", KEY) == ()
    written(printed, b"".join(b"%d\n" % number for number in range(100)) + b"\x1b[31mred\n\n")
    lines = printed.last_lines("a1", KEY)
    assert (len(lines), lines[0], lines[-1]) == (LINES, "61", "red")
    written(printed, b"x" * 100_000 + b"\n" + b"y" * 1000)
    (line,) = printed.last_lines("a1", KEY)
    assert (len(line), line[-1]) == (MOST_IN_LINE, "…")


def test_what_another_process_puts_there_is_neither_followed_nor_read(tmp_path: Path) -> None:
    printed, secret = Printed(tmp_path / "checks"), tmp_path / "secret"
    secret.write_text("secret")
    path = tmp_path / "checks" / "a1" / "1.2"
    path.parent.mkdir(parents=True)
    path.symlink_to(secret)
    assert printed.last_lines("a1", KEY) == ()
    written(printed, b"new")
    assert secret.read_text() == "secret"
    assert printed.last_lines("a1", KEY) == ("new",)
    path.unlink()
    os.mkfifo(path)
    assert printed.last_lines("a1", KEY) == ()


def test_it_is_read_in_pieces(tmp_path: Path) -> None:
    printed = Printed(tmp_path / "checks")
    written(printed, bytes(range(256)) * 1024)
    at, part = printed.piece("a1", KEY, 0)
    assert (at, len(part)) == (0, 128 << 10)
    assert printed.piece("a1", KEY, 128 << 10) == (128 << 10, part)
    assert printed.piece("a1", KEY, -2) == ((256 << 10) - 2, b"\xfe\xff")
    assert printed.piece("a1", KEY, 256 << 10)[1] == b""
    assert printed.piece("a1", KEY, -(1 << 40))[0] == 0


def test_what_a_command_truncates_stands_before_the_rest(tmp_path: Path) -> None:
    printed = Printed(tmp_path / "checks")
    written(printed, b"third\n")
    printed.save("a1", KEY, Truncation(b"first\n", 0))
    printed.save("a1", KEY, Truncation(b"second\n", 0))
    assert printed.last_lines("a1", KEY) == ("first", "second", "third")
    assert printed.piece("a1", KEY, 0) == (0, b"first\nsecond\n")
    assert printed.piece("a1", KEY, 13) == (13, b"third\n")
    assert printed.piece("a1", KEY, -6) == (13, b"third\n")
    assert printed.piece("a1", KEY, 19) == (19, b"")
    assert printed.keys("a1") == [KEY]
    # older bytes were not read in time: offsets stay as they were, and no zeros are shown
    printed.save("a1", KEY, Truncation(b"x" * 20_000, 100_000))
    at, data = printed.piece("a1", KEY, 13)
    assert 100_013 <= at < 105_000
    assert data == b"x" * (120_013 - at)
    assert printed.piece("a1", KEY, 120_013) == (120_013, b"third\n")
    written(printed, b"new")
    assert printed.last_lines("a1", KEY) == ("new",)


def test_the_oldest_bytes_are_freed(tmp_path: Path) -> None:
    printed = Printed(tmp_path / "checks")
    written(printed, b"\n".join(b"%d" % number for number in range(200_000)))
    path = tmp_path / "checks" / "a1" / "1.2"
    before = path.stat().st_blocks
    assert printed.free("a1", KEY, 64 << 10) == path.stat().st_size
    assert path.stat().st_blocks < before / 2
    assert printed.last_lines("a1", KEY)[-1] == "199999"


def test_what_is_old_is_deleted_with_the_output(tmp_path: Path) -> None:
    printed = Printed(tmp_path / "checks")
    written(printed, b"x")
    (tmp_path / "checks" / "no-run").mkdir()
    assert printed.keys("a1") == [KEY]
    assert printed.remove(["a1"], dry=True) > 0
    now = time.time()

    def remove_old(cutoff: float, *live: str) -> str:
        return printed.remove_old(Old(cutoff, lambda _: {"a1": now}, live, now, lambda: None))

    assert remove_old(now - 1) == ""
    assert remove_old(now + 1, "a1") == ""
    assert "of 1 run" in remove_old(now + 1)
    assert printed.keys("a1") == []
    assert [each.name for each in (tmp_path / "checks").iterdir()] == ["no-run"]
