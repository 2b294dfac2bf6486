"""How many tokens a call is taken to have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.features.gateway.program.apis import ModelCall
from sfad.features.gateway.program.bodies import estimate
from sfad.features.gateway.program.bodies.estimate import (
    ADDED,
    MOST_KEPT,
    MOST_RATIO,
    Estimates,
    within,
)
from sfad.protocol.types import Tokens


def call(told: int, model: str = "m", **more: Any) -> ModelCall:
    """Return a call whose text tells so many tokens, and has thrice as many bytes."""
    return ModelCall(model, None, tokens=told, most_tokens=3 * told, **more)


def following(told: int) -> ModelCall:
    return call(told, continues=True)


def learnt(*calls: tuple[int, int], run: str = "r") -> Estimates:
    """Return what is known after calls that told so many tokens of input, and had so many."""
    estimates = Estimates()
    for told, tokens in calls:
        estimates.learn(run, call(told), Tokens(input=tokens), 0)
    return estimates


def test_the_first_call_may_have_a_token_a_byte_and_mostly_has_a_quarter_more() -> None:
    assert Estimates().input("r", call(10_000)) == (10_001, 19_999 + ADDED, 2499 + ADDED)
    assert Estimates().input("r", call(100)) == (101, 199 + ADDED, 24 + ADDED)


def test_the_next_calls_have_what_the_last_ones_had_and_what_is_new() -> None:
    estimates = learnt((1000, 800))
    assert estimates.input("r", call(1000)) == (801, 79, 79)
    assert estimates.input("r", call(1200)) == (961, 439, 95)
    assert estimates.input("r", call(2000)) == (1601, 2199, 449)
    assert estimates.input("r", call(1000, "other")).tokens == 1001


def test_the_last_reply_is_a_part_of_the_next_input_and_its_tokens_are_known() -> None:
    """A reply of digits told twice as many tokens as it had, so the next call was refused."""
    estimates = Estimates()
    estimates.learn("r", call(1000), Tokens(input=1000, output=2000), 9000)
    assert estimates.input("r", call(5000)).tokens == 1 + 1000 + 2500 + 1000
    estimates.learn("r", call(1000), Tokens(input=1000, output=9000), 9000)
    assert estimates.input("r", call(5000)).tokens == 1 + 5000, "most of it was hidden thinking"
    assert estimates.input("r", call(1000)).tokens == 1001


@pytest.mark.parametrize("told", [100, 1000])
def test_the_reply_to_a_call_beside_a_conversation_is_no_part_of_it(told: int) -> None:
    """As to the one for its title, which Codex asks for in a terminal."""
    estimates = Estimates()
    estimates.learn("r", call(1000), Tokens(input=1000, output=2000), 9000)
    estimates.learn("r", call(told), Tokens(input=told, output=10), 40)
    assert estimates.input("r", call(5000)).tokens == 1 + 1000 + 2500 + 1000


def test_the_highest_ratio_counts_and_falls_slowly() -> None:
    assert learnt((1000, 1600), (1100, 880)).input("r", call(1000)).tokens == 1 + 1500
    assert learnt((1000, 800), (1100, 1760)).input("r", call(1000)).tokens == 1 + 1600


def test_a_small_call_says_nothing_of_large_ones() -> None:
    assert learnt((10_000, 8000), (500, 1600)).input("r", call(10_000)).tokens == 8001
    assert learnt((500, 1600), (10_000, 8000)).input("r", call(10_000)).tokens == 8001


def test_a_dense_model_is_known_from_other_runs_and_a_thin_one_is_not() -> None:
    assert learnt((1000, 2000)).input("other", call(1000)).tokens == 2001
    assert learnt((1000, 500)).input("other", call(1000)).tokens == 1001


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 2 * 10**6)), max_size=5),
    st.integers(1, 10**6),
)
def test_no_estimate_is_absurd(calls: list[tuple[int, int]], told: int) -> None:
    tokens, more, likely_more = learnt(*calls).input("r", call(told))
    assert 1 <= tokens <= max(MOST_RATIO * told, *(each for _, each in calls), 0) + 1
    assert 0 <= likely_more <= more


@pytest.mark.parametrize("used", [Tokens(), Tokens(output=5)])
def test_nothing_is_learned_of_nothing(used: Tokens) -> None:
    estimates = Estimates()
    estimates.learn("r", call(1000), used, 5)
    assert estimates.input("r", call(1000)).tokens == 1001
    assert estimates.output("r", call(1), 400) == 100


def test_what_the_provider_keeps_is_part_of_the_next_input() -> None:
    estimates = Estimates()
    assert estimates.input("r", following(100)) == (
        101,
        199 + ADDED + MOST_KEPT,
        24 + ADDED + MOST_KEPT,
    )
    estimates.learn("r", call(1000), Tokens(input=250, output=50), 0)
    assert estimates.input("r", following(100)).tokens == 1 + 25 + 300
    estimates.learn("r", following(100), Tokens(input=320, output=10), 0)
    assert estimates.input("r", following(100)).tokens == 1 + 25 + 330
    assert estimates.input("r", call(1000)).tokens == 251


def test_output_has_the_tokens_a_byte_of_the_replies_before() -> None:
    estimates = Estimates()
    assert estimates.output("r", call(1), 401) == 101
    estimates.learn("r", call(1000), Tokens(input=250, output=50), 100)
    estimates.learn("r", call(1000), Tokens(input=250, output=10), 20)
    assert estimates.output("r", call(1), 60) == 30
    assert estimates.output("r", call(1), 401) == 131, "it has hidden no more than 30 tokens"
    estimates.learn("r", call(1000), Tokens(input=250, output=20), 480)
    assert estimates.output("r", call(1), 600) == 80
    assert estimates.output("other", call(1), 401) == 101


def test_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "MAX_RUNS", 2)
    estimates = Estimates()
    for run in ("a", "b", "a", "c"):
        estimates.learn(run, call(1000), Tokens(input=250), 0)
    assert [estimates.input(run, call(1000)).tokens for run in ("a", "b", "c")] == [251, 1001, 251]


def test_audio_and_video_are_not_in_the_text() -> None:
    spoken = call(1000, media={"audio": 5000, "image": 300}, most_media={"audio": 20_000})
    assert Estimates().input("r", spoken) == (
        1001 + 5000,
        1999 + ADDED + 15_000,
        249 + ADDED + 15_000,
    )
    estimates = Estimates()
    used = Tokens(input=4250, modes={"audio": Tokens(input=4000), "image": Tokens(input=100)})
    estimates.learn("r", spoken, used, 0)
    assert estimates.input("r", call(1000)).tokens == 251


def test_the_parts_of_an_input_are_at_most_all_of_it() -> None:
    assert within({"audio": 700, "image": 700}, 1000) == {"audio": 700, "image": 300}
