"""How many tokens a call is taken to have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.gateway import estimate
from sfad.gateway.apis import ModelCall
from sfad.gateway.estimate import ADDED, MOST_KEPT, Estimates, within
from sfad.protocol.types import Tokens


def call(size: int, model: str = "m", **more: Any) -> ModelCall:
    return ModelCall(model, None, size=size, **more)


def following(size: int) -> ModelCall:
    return call(size, continues=True)


def learnt(*calls: tuple[int, int], run: str = "r") -> Estimates:
    """Return what is known after calls of so many bytes and tokens of input."""
    estimates = Estimates()
    for size, tokens in calls:
        estimates.learn(run, call(size), Tokens(input=tokens), 0)
    return estimates


def test_the_first_call_may_have_a_token_a_byte() -> None:
    assert Estimates().input("r", call(1000)) == (401, 599 + ADDED)


def test_the_next_calls_have_what_the_last_ones_had_and_what_is_new() -> None:
    estimates = learnt((1000, 250))
    assert estimates.input("r", call(1000)) == (251, 24)
    assert estimates.input("r", call(1200)) == (301, 149)
    assert estimates.input("r", call(1000, "other")).tokens == 401


def test_the_highest_ratio_counts_and_falls_slowly() -> None:
    assert learnt((1000, 400), (1100, 220)).input("r", call(1000)).tokens == 1 + 375
    assert learnt((1000, 200), (1100, 440)).input("r", call(1000)).tokens == 1 + 400


def test_a_small_call_says_nothing_of_large_ones() -> None:
    assert learnt((10_000, 2500), (500, 400)).input("r", call(10_000)).tokens == 2501
    assert learnt((500, 400), (10_000, 2500)).input("r", call(10_000)).tokens == 2501


def test_a_dense_model_is_known_from_other_runs_and_a_thin_one_is_not() -> None:
    assert learnt((1000, 700)).input("other", call(1000)).tokens == 701
    assert learnt((1000, 200)).input("other", call(1000)).tokens == 401


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 2 * 10**6)), max_size=5),
    st.integers(1, 10**6),
)
def test_no_estimate_is_absurd(calls: list[tuple[int, int]], size: int) -> None:
    tokens, more = learnt(*calls).input("r", call(size))
    assert 1 <= tokens <= max(size, *(each for _, each in calls), 0) + 1
    assert more >= 0


@pytest.mark.parametrize("used", [Tokens(), Tokens(output=5)])
def test_nothing_is_learned_of_nothing(used: Tokens) -> None:
    estimates = Estimates()
    estimates.learn("r", call(1000), used, 5)
    assert estimates.input("r", call(1000)).tokens == 401
    assert estimates.output("r", call(1), 400) == 100


def test_what_the_provider_keeps_is_part_of_the_next_input() -> None:
    estimates = Estimates()
    assert estimates.input("r", following(100)) == (41, 59 + ADDED + MOST_KEPT)
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
    assert estimates.output("r", call(1), 401) == 201
    assert estimates.output("other", call(1), 401) == 101


def test_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "MAX_RUNS", 2)
    estimates = Estimates()
    for run in ("a", "b", "a", "c"):
        estimates.learn(run, call(1000), Tokens(input=250), 0)
    assert [estimates.input(run, call(1000)).tokens for run in ("a", "b", "c")] == [251, 401, 251]


def test_audio_and_video_are_not_in_the_text() -> None:
    spoken = call(1000, media={"audio": 5000, "image": 300}, most_media={"audio": 20_000})
    assert Estimates().input("r", spoken) == (401 + 5000, 599 + ADDED + 15_000)
    estimates = Estimates()
    used = Tokens(input=4250, modes={"audio": Tokens(input=4000), "image": Tokens(input=100)})
    estimates.learn("r", spoken, used, 0)
    assert estimates.input("r", call(1000)).tokens == 251


def test_the_parts_of_an_input_are_at_most_all_of_it() -> None:
    assert within({"audio": 700, "image": 700}, 1000) == {"audio": 700, "image": 300}
