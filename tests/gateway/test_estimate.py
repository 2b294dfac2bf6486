"""How many tokens an input is taken to have."""

from __future__ import annotations

import base64

import pytest

from sfad.gateway import estimate
from sfad.gateway.apis import ModelCall
from sfad.gateway.estimate import InputEstimates, text_size
from sfad.protocol.types import Tokens

CALL = ModelCall("m", None)
NEXT = ModelCall("m", None, continues=True)


def test_the_first_call_and_those_after_it() -> None:
    estimates = InputEstimates()
    assert estimates.tokens("r", CALL, 1000) == 401
    estimates.learn("r", CALL, 1000, Tokens(input=250))
    assert estimates.tokens("r", CALL, 1200) == 301
    assert estimates.tokens("r", ModelCall("other", None), 1000) == estimates.tokens("other", CALL, 1000) == 401


@pytest.mark.parametrize("used", [Tokens(), Tokens(output=5)])
def test_nothing_is_learned_of_nothing(used: Tokens) -> None:
    estimates = InputEstimates()
    estimates.learn("r", CALL, 1000, used)
    assert estimates.tokens("r", CALL, 1000) == 401


def test_what_the_provider_keeps_is_part_of_the_next_input() -> None:
    estimates = InputEstimates()
    estimates.learn("r", CALL, 1000, Tokens(input=250, output=50))
    assert estimates.tokens("r", NEXT, 100) == 1 + 25 + 300
    estimates.learn("r", NEXT, 100, Tokens(input=320, output=10))
    assert estimates.tokens("r", NEXT, 100) == 1 + 25 + 330
    assert estimates.tokens("r", CALL, 1000) == 251


def test_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "MAX_RUNS", 2)
    estimates = InputEstimates()
    for run in ("a", "b", "a", "c"):
        estimates.learn(run, CALL, 1000, Tokens(input=250))
    assert [estimates.tokens(run, CALL, 1000) for run in ("a", "b", "c")] == [251, 401, 251]


@pytest.mark.parametrize("start", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF"])
def test_an_image_counts_the_same_whatever_its_bytes(start: bytes) -> None:
    sizes = {
        text_size(b'{"media_type": "image/png", "data": "' + base64.b64encode(start + bytes(size)) + b'"}')
        for size in (3000, 30_000, 3_000_000)
    }
    assert len(sizes) == 1
    assert 10_000 < sizes.pop() < 20_000


def test_a_text_counts_as_it_is() -> None:
    assert text_size(b"x" * 100_000) == 100_000
    assert text_size(b"") == 1
    assert text_size(base64.b64encode(b"%PDF-1.7" + bytes(30_000))) > 40_000
