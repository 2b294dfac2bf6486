"""A field that is wrong is lost, and no other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sfad.agents.lenient import LenientDecoder, lenient


class Inner(msgspec.Struct):
    count: int = 0
    words: list[str] = []


class Outer(msgspec.Struct, rename="camel"):
    kind: str = ""
    first_part: Inner | None = None
    parts: list[Inner] = []
    told: Any = None


DECODER = LenientDecoder(Outer)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"{}", Outer()),
        (b'{"kind": "x", "told": [1]}', Outer("x", told=[1])),
        (b'{"kind": 5, "told": 1}', Outer(told=1)),
        (b'{"kind": null, "told": 1}', Outer(told=1)),
        (b'{"firstPart": {"count": "1", "words": ["a"]}}', Outer("", Inner(0, ["a"]))),
        (b'{"firstPart": [], "kind": "x"}', Outer("x")),
        (
            b'{"parts": [{"count": 1}, 5, null, {"count": [], "words": ["a", 1, "b"]}]}',
            Outer(parts=[Inner(1), Inner(0, ["a", "b"])]),
        ),
        (b'{"parts": {"count": 1}, "kind": "x"}', Outer("x")),
        (b'{"kind": "a\\ud83d", "told": 1}', Outer("a\ufffd", told=1)),
        (b'{"kind": "a\xff", "told": 1}', Outer("a\ufffd", told=1)),
        (b'{"kind": "a\\ud83d", "parts": 5}', Outer("a\ufffd")),
    ],
)
def test_a_wrong_field_loses_only_itself(data: bytes, found: Outer) -> None:
    assert DECODER.decode(data) == found


@pytest.mark.parametrize("data", [b"", b"[]", b"5", b"null", b"{", b'{"kind": "x"'])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        DECODER.decode(data)


def test_a_value_of_another_form_has_a_default() -> None:
    assert lenient(list[Inner], b'[{"count": 1}, "x"]', []) == [Inner(1)]
    assert lenient(list[Inner], b'"x"', []) == []
    assert lenient(list[Inner], b"", None) is None
    assert lenient(dict[str, Any], b"[1]", None) is None
