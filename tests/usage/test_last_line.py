"""The last line on stderr, as it joins the reason of a failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfad.usage.tailed_run import LAST_LINE_WITHIN, MAX_TEXT, last_line


def read(file: Path, data: bytes, begin: int = 0) -> str | None:
    file.write_bytes(data)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return last_line(descriptor, begin, len(data))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", None),
        (b" \n\n", None),
        (b"first\nlast", "last"),
        (b"first\n\x1b[31mlast \tone\x1b[0m\r\n \n", "last one"),
        (b"API_KEY=sk-ant-secretsecretsecret is wrong", "API_KEY=*** is wrong"),
        (b"x" * 300, "x" * (MAX_TEXT - 1) + "\u2026"),
        (b"s" * (LAST_LINE_WITHIN + 1), None),
        (b"s" * LAST_LINE_WITHIN + b"\nlast\n", "last"),
    ],
)
def test_it_is_the_last_line_with_text(tmp_path: Path, data: bytes, line: str | None) -> None:
    assert read(tmp_path / "err", data) == line


def test_an_attempt_before_is_not_told(tmp_path: Path) -> None:
    assert read(tmp_path / "err", b"before\n", begin=7) is None
    assert read(tmp_path / "err", b"before\nnow", begin=7) == "now"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_whatever_was_written_it_is_short_and_printable(tmp_path: Path, data: bytes) -> None:
    text = read(tmp_path / "err", data)
    assert text is None or (0 < len(text) <= MAX_TEXT and text.isprintable())
