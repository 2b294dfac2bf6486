"""How many tokens a call is taken to have."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.gateway import estimate
from sfad.gateway.apis import ModelCall
from sfad.gateway.estimate import ADDED, MOST_KEPT, Estimates, text_size
from sfad.protocol.types import Tokens

CALL = ModelCall("m", None)
NEXT = ModelCall("m", None, continues=True)


def learnt(*calls: tuple[int, int], run: str = "r") -> Estimates:
    """Return what is known after calls of so many bytes and tokens of input."""
    estimates = Estimates()
    for size, tokens in calls:
        estimates.learn(run, CALL, size, Tokens(input=tokens), 0)
    return estimates


def test_the_first_call_may_have_a_token_a_byte() -> None:
    assert Estimates().input("r", CALL, 1000) == (401, 599 + ADDED)


def test_the_next_calls_have_what_the_last_ones_had_and_what_is_new() -> None:
    estimates = learnt((1000, 250))
    assert estimates.input("r", CALL, 1000) == (251, 24)
    assert estimates.input("r", CALL, 1200) == (301, 149)
    assert estimates.input("r", ModelCall("other", None), 1000).tokens == 401


def test_the_highest_ratio_counts_and_falls_slowly() -> None:
    assert learnt((1000, 400), (1100, 220)).input("r", CALL, 1000).tokens == 1 + 375
    assert learnt((1000, 200), (1100, 440)).input("r", CALL, 1000).tokens == 1 + 400


def test_a_small_call_says_nothing_of_large_ones() -> None:
    assert learnt((10_000, 2500), (500, 400)).input("r", CALL, 10_000).tokens == 2501
    assert learnt((500, 400), (10_000, 2500)).input("r", CALL, 10_000).tokens == 2501


def test_a_dense_model_is_known_from_other_runs_and_a_thin_one_is_not() -> None:
    assert learnt((1000, 700)).input("other", CALL, 1000).tokens == 701
    assert learnt((1000, 200)).input("other", CALL, 1000).tokens == 401


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 2 * 10**6)), max_size=5),
    st.integers(1, 10**6),
)
def test_no_estimate_is_absurd(calls: list[tuple[int, int]], size: int) -> None:
    tokens, more = learnt(*calls).input("r", CALL, size)
    assert 1 <= tokens <= max(size, *(each for _, each in calls), 0) + 1
    assert more >= 0


@pytest.mark.parametrize("used", [Tokens(), Tokens(output=5)])
def test_nothing_is_learned_of_nothing(used: Tokens) -> None:
    estimates = Estimates()
    estimates.learn("r", CALL, 1000, used, 5)
    assert estimates.input("r", CALL, 1000).tokens == 401
    assert estimates.output("r", CALL, 400) == 100


def test_what_the_provider_keeps_is_part_of_the_next_input() -> None:
    estimates = Estimates()
    assert estimates.input("r", NEXT, 100) == (41, 59 + ADDED + MOST_KEPT)
    estimates.learn("r", CALL, 1000, Tokens(input=250, output=50), 0)
    assert estimates.input("r", NEXT, 100).tokens == 1 + 25 + 300
    estimates.learn("r", NEXT, 100, Tokens(input=320, output=10), 0)
    assert estimates.input("r", NEXT, 100).tokens == 1 + 25 + 330
    assert estimates.input("r", CALL, 1000).tokens == 251


def test_output_has_the_tokens_a_byte_of_the_replies_before() -> None:
    estimates = Estimates()
    assert estimates.output("r", CALL, 401) == 101
    estimates.learn("r", CALL, 1000, Tokens(input=250, output=50), 100)
    estimates.learn("r", CALL, 1000, Tokens(input=250, output=10), 20)
    assert estimates.output("r", CALL, 401) == 201
    assert estimates.output("other", CALL, 401) == 101


def test_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "MAX_RUNS", 2)
    estimates = Estimates()
    for run in ("a", "b", "a", "c"):
        estimates.learn(run, CALL, 1000, Tokens(input=250), 0)
    assert [estimates.input(run, CALL, 1000).tokens for run in ("a", "b", "c")] == [251, 401, 251]


@pytest.mark.parametrize("start", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF"])
def test_an_image_counts_the_same_whatever_its_bytes(start: bytes) -> None:
    sizes = {
        text_size(
            b'{"media_type": "image/png", "data": "' + base64.b64encode(start + bytes(size)) + b'"}'
        )
        for size in (3000, 30_000, 3_000_000)
    }
    assert len(sizes) == 1
    assert 10_000 < sizes.pop() < 20_000


def test_a_text_counts_as_it_is() -> None:
    assert text_size(b"x" * 100_000) == 100_000
    assert text_size(b"") == 1
    assert text_size(base64.b64encode(b"%PDF-1.7" + bytes(30_000))) > 40_000
