"""Why calls wait, and what is told of a reply whose limit is gone."""

from __future__ import annotations

from sfad.features.gateway.feature import CallBounds, GatewayConfig
from sfad.protocol.types import LimitKind, Status
from tests.core.holding import moment
from tests.core.test_holds import holds, kinds

from .transcript import Gated


def test_a_call_that_waits_for_its_turn_holds_no_run() -> None:
    t = Gated(gateway=GatewayConfig(per_run=CallBounds(concurrent_calls=1)))
    a = t.start("a", limits="cost=50")
    name, _ = t.admitted(t.call(a))
    (t >> t.later(4).call(a)).skip()
    (t >> t.call(a)).skip()
    (call,) = holds(t, a)
    assert (t.run(a).status, call.kind, call.blocks, call.clock_stops) == (
        Status.RUNNING, "call", "call", False
    )  # fmt: skip
    assert call.words.startswith("2 model calls wait: run a1 ('a') has 1 model call under way, and")
    assert (call.since, call.until) == (moment(4), moment(64))
    (t >> t.called(name)).skip()
    (call,) = holds(t, a)
    assert call.words.startswith("1 model call waits: ")
    (t >> t.pause(a)).skip()
    assert kinds(t, a) == [("person", "processes")], "the call waits for the run"


def test_a_call_that_waits_for_what_others_have_reserved() -> None:
    t = Gated()
    a = t.start("a", limits="tokens=25000")
    t.admitted(t.call(a, 20_000))
    (t >> t.call(a, 20_000)).skip()
    (call,) = holds(t, a)
    assert call.words == (
        f"1 model call waits: the rest of the tokens limit of run {a} is reserved for other calls"
    )


def test_a_reply_is_told_of_that_a_limit_has_cut_which_is_gone() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.2:refuse")
    name, output = t.admitted(t.call(a))
    assert output is not None
    del t.run(a).limits[LimitKind.COST]
    (t >> t.called(name, output_tokens=output, cost=0.1999, cut=True)).skip()
    (told,) = [message for message in t.progress if "cut" in message]
    assert told.endswith("; a limit that has been raised since had no room for more")
    assert t.run(a).cut is not None
