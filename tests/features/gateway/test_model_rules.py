"""Models that a run may call."""

from __future__ import annotations

from typing import Any

import pytest

from sfad.core import events as e
from sfad.core.state.policy import Policy
from sfad.features.gateway.feature import NAME, GatewayConfig
from tests.core.transcript import inside

from .transcript import Gated


def test_no_rule_allows_each_model() -> None:
    t = Gated()
    t.admitted(t.call(t.start("a"), 10, model="any"))


@pytest.mark.parametrize("detach", [False, True])
def test_children_and_detached_runs_only_narrow_the_models(detach: bool) -> None:
    t = Gated(
        gateway=GatewayConfig(models=("claude-*", "m")),
        files={"gateway.models": "F"},
        allow_detach=True,
    )
    a = t.start("a", allowed_models=("claude-haiku-*", "claude-opus-*", "x"))
    b = t.start("b", inside(a), allowed_models=("claude-*-4", "m"), detach=detach)
    d = t.start("d", inside(b))
    free = t.start("free")
    t.admitted(t.call(free, 10))
    t.admitted(t.call(a, 10, model="claude-opus-5"))
    t.admitted(t.call(d, 10, model="claude-haiku-4"))
    words = "the model 'x' is not one of claude-*, m (gateway.models in F); use one of these"
    assert t.failed(t.call(a, 10, model="x")) == words
    words = (
        "the model 'm' is not one of claude-haiku-*, claude-opus-*, x (--model-allow of run a1); "
        "use one of these"
    )
    assert t.failed(t.call(d, 10)) == words
    assert "(--model-allow of run a2)" in t.failed(t.call(d, 10, model="claude-opus-5"))


def test_a_call_that_is_held_is_refused_when_its_model_is_not_allowed_any_more() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.05:pause")
    held = t.call(a)
    (t >> held).skip()
    (t >> e.Reconfigured(t.at, Policy(sections={NAME: GatewayConfig(models=("other",))}))).skip()
    answer: Any = t.answers[held.token]
    assert "gateway.models" in answer.message


@pytest.mark.parametrize("others", [("x",), ("claude-opus-5", "x")])
def test_further_models_of_a_call_are_held_to_the_same_rules(others: tuple[str, ...]) -> None:
    """An advisor of Anthropic's, whom the model asks within the call."""
    t = Gated(gateway=GatewayConfig(models=("claude-*",)), files={"gateway.models": "F"})
    a = t.start("a", allowed_models=("claude-haiku-*", "claude-opus-*"))
    t.admitted(t.call(a, 10, model="claude-haiku-4", others=("claude-opus-5",)))
    words = "the model 'x' is not one of claude-* (gateway.models in F); use one of these"
    assert t.failed(t.call(a, 10, model="claude-haiku-4", others=others)) == words
    narrower = t.failed(t.call(a, 10, model="claude-haiku-4", others=("claude-sonnet-5",)))
    assert narrower.startswith("the model 'claude-sonnet-5' is not one of claude-haiku-*")


def test_a_held_call_is_refused_when_a_further_model_is_not_allowed_any_more() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.05:pause")
    held = t.call(a, others=("other",))
    (t >> held).skip()
    (t >> e.Reconfigured(t.at, Policy(sections={NAME: GatewayConfig(models=("m",))}))).skip()
    answer: Any = t.answers[held.token]
    assert "the model 'other' is not one of m" in answer.message
