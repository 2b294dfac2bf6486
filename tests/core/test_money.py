"""Sources of use, reservations and budgets, as transcripts."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import pytest

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.life.pausing import REPLY_OUTLIVES
from sfad.core.limits import use_requests
from sfad.core.state.account import Account, OpenReservation, Use
from sfad.core.state.money import to_nanos, to_usd
from sfad.protocol.types import ErrorCode, LimitKind, LimitRefusal, Source, Status
from tests.together import together

from .test_adopting import Life
from .transcript import Sums, Transcript, inside, use

COST, TOKENS = LimitKind.COST, LimitKind.TOKENS


def cost(t: Transcript, *runs: str) -> list[float | None]:
    """Return the USD that each run has used, reservations included."""
    return [usd(t, run) for run in runs]


def usd(t: Transcript, run: str, kind: LimitKind = COST) -> float | None:
    """Return the USD that a run has used, of one kind of cost."""
    found = t.run(run).account.used(kind)
    return None if found is None else to_usd(int(found))


# ---- sources


BEST_FIRST: tuple[Source, ...] = ("gateway", "report", "stream", "session")


@together("order", list(permutations(BEST_FIRST)))
def test_sources_are_never_added(order: tuple[Source, ...]) -> None:
    """In whatever order sources tell: the largest figure is enforced, counts for the tree, and is
    shown."""
    figures: dict[Source, float] = {
        "gateway": 0.25,
        "report": 0.5,
        "stream": 0.125,
        "session": 0.375,
    }
    t = Transcript(purses=Sums)
    a = t.start("a")
    b = t.start("b", inside(a))
    heard: list[Source] = []
    for source in order:
        (t >> t.used(b, source, cost=figures[source])).skip()
        heard.append(source)
        assert cost(t, a, b) == [max(figures[each] for each in heard)] * 2
        best = t.run(b).account.best
        assert best is not None
        assert best[0] == max(heard, key=figures.__getitem__)
        assert to_usd(best[1].cost) == figures[best[0]]
    assert t.charged == {"ann": 0.5}


def test_the_largest_figure_is_found_for_each_kind_by_itself() -> None:
    account = Account(
        sources={"stream": use(turns=9, cost=0.1), "report": use(turns=2, cost=0.4, input_tokens=5)}
    )
    assert [account.used(LimitKind(kind)) for kind in ("turns", "cost", "tokens", "messages")] == [
        9,
        400_000_000,
        5,
        None,
    ]
    assert account.best == ("report", use(turns=9, cost=0.4, input_tokens=5))
    assert Account().best is None
    assert not Account().metered


def test_reports_add_up_and_unknown_stays_unknown() -> None:
    t = Transcript()
    a = t.start("a")
    for _ in range(2):
        (t >> t.report(a, turns=1, input_tokens=10, cost=0.125, cost_from="agent")).skip()
    (t >> t.report(a, output_tokens=5)).skip()
    reported = t.run(a).account.sources["report"]
    assert reported == use(turns=2, input_tokens=20, output_tokens=5, cost=0.25, cost_from="agent")
    assert reported.messages is None
    assert reported.tokens == 25
    (t >> t.report(a, cost=0.125, cost_from="prices")).skip()
    assert t.run(a).account.sources["report"].cost_from == "prices"


TOLD = [None, 0, 3]


@pytest.mark.parametrize(("one", "other"), list(product(TOLD, TOLD)))
def test_sums_of_known_and_unknown_amounts(one: int | None, other: int | None) -> None:
    expected = None if one is None and other is None else (one or 0) + (other or 0)
    for field in Use.__dataclass_fields__:
        if field not in ("cost_from", "partial", "estimated"):
            total = Use(**{field: one}).plus(Use(**{field: other}))  # type: ignore[arg-type]
            assert getattr(total, field) == expected, field
    assert Use(input_tokens=one, output_tokens=other).tokens == expected


def test_roles_have_costs_of_their_own() -> None:
    t = Transcript()
    a = t.start("a", limits="planning_cost=0.5:warn execution_cost=0.5 cost=5", reports=True)
    b = t.start("b", inside(a), limits="cost=5")
    (t >> t.report(b, cost=0.4, planning_cost=0.4)).skip()
    (t >> t.report(b, cost=0.4, execution_cost=0.4)).skip()
    assert [
        usd(t, a, kind) for kind in (COST, LimitKind.PLANNING_COST, LimitKind.EXECUTION_COST)
    ] == [0.8, 0.4, 0.4]
    t.reserved(t.reserve(b, 0.2, role="planning"))
    refusal = t.not_reserved(t.reserve(b, 0.2, role="execution"))
    assert (refusal.limit_kind, refusal.whose) == ("execution_cost", a)
    assert t.said == [
        "near a1 planning_cost 0.4/0.5", "near a1 execution_cost 0.4/0.5",
        "over a1 planning_cost 0.4+0.2/0.5", "over a1 execution_cost 0.4/0.5 refused",
    ]  # fmt: skip


# ---- reservations


def test_reserve_and_settle() -> None:
    t = Transcript(purses=Sums)
    a, b = t.chain("a", "b")
    t >> t.reserve(b, 0.5, 100) << "reply 3 Reserved a2-1"
    assert t.noted == {"a2"}
    assert cost(t, a, b) == [0.5, 0.5]
    assert t.run(b).account.used(TOKENS) == 100
    (t >> t.settle("a2-1", cost=0.125, input_tokens=10, output_tokens=7, turns=1))
    assert t.noted == {"a2"}
    t << "reply 4 Changed a2 running"
    assert cost(t, a, b) == [0.125, 0.125]
    assert [t.run(run).account.used(TOKENS) for run in (a, b)] == [17, 17]
    assert t.failed(t.settle("a2-1", cost=1)) == (
        "no reservation 'a2-1' is open: "
        "it was settled, or its run has ended and it was charged in full"
    )
    assert t.charged == {"ann": 0.125}
    # a settlement that says nothing gives back what was held
    name = t.reserved(t.reserve(b, 0.25))
    (t >> t.settle(name)).skip()
    assert cost(t, a, b) == [0.125, 0.125]


def test_a_reservation_that_is_not_settled_is_charged_in_full() -> None:
    t = Transcript(purses=Sums)
    a, b = t.chain("a", "b")
    run = t.run(b)
    (t >> t.report(b, cost=0.0625)).skip()
    name = t.reserved(t.reserve(b, 0.5, 100, role="planning"))
    t.reserved(t.reserve(b, 0.25))
    (t >> t.exited(b, 0)).skip()
    assert not run.account.reservations
    assert run.account.used(COST) == 812_500_000
    assert run.account.sources["report"] == use(
        input_tokens=100,
        output_tokens=0,
        cost=0.8125,
        cost_from="prices",
        planning_cost=0.5,
        unsure_tokens=100,
        unsure_cost=750_000_000,
    )
    assert cost(t, a) == [0.8125]
    t.reserved(t.reserve(a, 0.03125, role="execution"))
    root = t.run(a)
    (t >> t.exited(a, 0)).skip()
    assert root.account.sources["report"].execution_cost == 31_250_000
    assert t.charged == {"ann": 0.84375}
    assert "has ended and it was charged in full" in t.failed(t.settle(name, cost=0.1))
    assert "has ended" in t.failed(t.reserve(b, 0.1))
    assert not any(run.account.reservations for run in t.machine.tree)


def test_a_stopping_run_settles_its_reservations_and_reserves_no_more() -> None:
    t = Transcript()
    a = t.start("a")
    name = t.reserved(t.reserve(a, 0.5))
    (t >> t.stop(a)).skip()
    assert t.failed(t.reserve(a, 0.1)) == "nothing is reserved: run a1 is being stopped"
    (t >> t.settle(name, cost=0.25)).skip()
    assert cost(t, a) == [0.25]


def test_ten_children_and_their_parents_last_dollar() -> None:
    """Ten times a tenth is a dollar exactly; the eleventh does not fit."""
    t = Transcript(purses=Sums)
    a = t.start("a", limits="cost=1:pause")
    children = [t.start(f"child-{n}", inside(a)) for n in range(10)]
    names = [t.reserved(t.reserve(child, 0.1)) for child in children]
    assert len(set(names)) == 10
    assert cost(t, a) == [1.0]
    assert t.said == [], "what is only reserved brings no limit near"
    before = cost(t, a, *children), dict(t.charged)
    refusal = t.not_reserved(t.reserve(children[3], 0.1))
    assert (cost(t, a, *children), t.charged) == before, "nothing is charged for a refused one"
    assert refusal == LimitRefusal(
        scope="tree", whose=a, limit_kind=COST, threshold=1, used=0, reserved=1, asked=0.1,
        message="not reserved: 0.10 USD more would take run a1 ('a') above its cost limit: "
        "0.00 of 1.00 USD are used (1.00 more reserved), set by --limit. "
        "Finish with what you have.",
    )  # fmt: skip
    assert t.said[-1] == "over a1 cost 0+1/1 refused"
    assert [t.run(run).status for run in (a, *children)] == [Status.PAUSED] * 11
    # settled for nothing, there is room again: all of it, to the last tenth
    (t >> t.resume(a, room="cost=1")).skip()
    for name in names:
        (t >> t.settle(name, cost=0.0)).skip()
    assert cost(t, a) == [0.0]
    assert [t.reserved(t.reserve(child, 0.1)) for child in children]
    assert cost(t, a) == [1.0]


@pytest.mark.parametrize("amount", [0.01, 0.03, 0.07, 0.1, 1 / 3, 0.3])
def test_reservations_of_any_size_never_exceed_the_limit(amount: float) -> None:
    t = Transcript()
    a = t.start("a", limits="cost=2:pause")
    granted = 0
    for number in range(300):
        event = t.reserve(a, amount)
        (t >> event).skip()
        answer = t.answers[event.token]
        assert isinstance(answer, c.ReserveAnswer)
        if answer.refusal is not None:
            break
        granted += 1
        if number % 3 == 0:  # settled at what was held
            assert answer.reservation is not None
            (t >> t.settle(answer.reservation, cost=amount)).skip()
    assert granted == 2_000_000_000 // round(amount * 1_000_000_000)


def test_a_refused_reservation_is_a_breach() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a", limits="tokens=100")
    b = t.start("b", inside(a))
    t.reserved(t.reserve(b, tokens=50))
    (
        t
        >> t.reserve(b, tokens=60)
        << "reply 4 NotReserved a1 tokens"
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
    )
    (t >> t.emptied(a)).skip()
    reason = t.reasons[a]
    assert reason is not None
    assert (reason.limit_kind, reason.used, reason.reserved, reason.tokens) == (
        "tokens",
        0,
        50,
        None,
    )
    assert (reason.refused, reason.exceeded_by) == (True, 10)
    assert (
        reason.message == "asked for 60 tokens on top of 0 that it has used (50 more reserved); "
        "its tokens limit is 100, set by --limit"
    )


def test_a_reservation_that_is_only_refused() -> None:
    """`refuse` answers no, publishes that once, and ends no run; use without a reservation is still
    a breach."""
    t = Transcript()
    a = t.start("a", limits="tokens=100:refuse cost=1:refuse")
    t.reserved(t.reserve(a, tokens=50))
    for _ in range(2):
        (t >> t.reserve(a, tokens=60)).skip()
    assert [line for line in t.events if line.startswith("limit_exceeded")] == [
        f"limit_exceeded {a}"
    ]
    assert t.run(a).status is Status.RUNNING
    t.reserved(t.reserve(a, tokens=50))
    (t >> t.report(a, input_tokens=1)).skip()
    assert t.run(a).status is Status.STOPPING


def test_a_limit_that_only_warns_refuses_nothing() -> None:
    t = Transcript()
    a = t.start("a", limits="cost=0.1:warn")
    t.reserved(t.reserve(a, 0.5))
    assert t.said == ["near a1 cost 0+0.5/0.1", "over a1 cost 0+0.5/0.1"]


def test_a_model_without_a_price_is_held_to_its_tokens() -> None:
    t = Transcript(purses=Sums)
    a = t.start("a", limits="tokens=100:pause")
    t.reserved(t.reserve(a, None, 100))
    assert cost(t, a) == [None], "unknown is never 0"
    assert t.not_reserved(t.reserve(a, None, 1)).limit_kind == "tokens"
    assert not t.charged


def test_reservations_add_to_reports_and_to_no_other_source() -> None:
    t = Transcript()
    a = t.start("a", limits="cost=1:pause")
    (t >> t.report(a, cost=0.25)).skip()
    (t >> t.used(a, "stream", cost=0.5)).skip()
    t.reserved(t.reserve(a, 0.125))
    assert cost(t, a) == [0.5]
    t.reserved(t.reserve(a, 0.5))
    assert cost(t, a) == [0.875]
    refusal = t.not_reserved(t.reserve(a, 0.25))
    assert (refusal.used, refusal.reserved) == (0.5, 0.375)


def test_a_leak_of_reservations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use_requests, "MAX_RESERVATIONS", 20)
    t = Transcript(defaults={})
    a = t.start("a")
    for _ in range(20):
        t.reserved(t.reserve(a, tokens=1))
    event = t.reserve(a, tokens=1)
    assert t.failed(event) == "nothing is reserved: run a1 holds 20 reservations; settle some"
    answer = t.answers[event.token]
    assert isinstance(answer, c.ErrorAnswer)
    assert answer.code is ErrorCode.WRONG_STATE


# ---- budgets


def test_figures_that_belong_together_are_shown_from_one_source() -> None:
    t = Transcript()
    a = t.start("a")
    (
        t >> t.used(a, turns=3, input_tokens=500, output_tokens=50, cost=0.25, cost_from="agent")
    ).skip()
    (t >> t.report(a, input_tokens=7, unpriced_tokens=7)).skip()
    best = t.run(a).account.best
    assert best is not None
    source, told = best
    assert (source, told.turns) == ("report", 3)
    assert (told.input_tokens, told.output_tokens, told.tokens) == (500, 50, 550)
    assert (told.cost, told.cost_from, told.unpriced_tokens) == (250_000_000, "agent", None)


def test_a_figure_is_not_final_while_another_source_tells_more() -> None:
    t = Transcript()
    a = t.start("a")

    def shown() -> tuple[int | None, float | None, bool]:
        best = t.run(a).account.best
        assert best is not None
        return best[1].output_tokens, to_usd(best[1].cost), best[1].partial

    (t >> t.report(a, output_tokens=50, cost=0.5, partial=True)).skip()
    assert shown() == (50, 0.5, True)
    (t >> t.used(a, output_tokens=70, cost=0.25, partial=True)).skip()
    assert shown() == (70, 0.5, True)
    (t >> t.used(a, output_tokens=70, cost=0.25)).skip()
    assert shown() == (70, 0.5, True)
    (t >> t.used(a, output_tokens=70, cost=0.5)).skip()
    assert shown() == (70, 0.5, False)


GUESS = use(
    messages=1, input_tokens=100, output_tokens=40, cost=0.5,
    guessed_tokens=38, guessed_cost=0.375, partial=True,
)  # fmt: skip
"""What an agent prints of one call whose output it has not told yet."""
EXACT = use(messages=1, input_tokens=100, output_tokens=10, cost=0.25)


@pytest.mark.parametrize(
    ("gateway", "counts"),
    [
        (EXACT, False),
        (replace(EXACT, input_tokens=99), True),
        (replace(EXACT, messages=0), True),
        (replace(EXACT, output_tokens=1), True),
        (replace(EXACT, cost=124_999_999), False),
        (replace(EXACT, partial=True), True),
    ],
)
def test_an_estimate_counts_unless_the_gateway_has_measured_its_calls(
    gateway: Use, counts: bool
) -> None:
    """Limits, budgets and all that is shown count it, or none does."""
    t = Transcript(purses=Sums)
    a = t.start("a", limits="cost=0.4:warn")
    b = t.start("b", inside(a))
    (t >> e.UseSeen(t.at, b, "stream", GUESS)).skip()
    assert cost(t, a, b) == [0.5, 0.5]
    (t >> e.UseSeen(t.at, b, "gateway", gateway)).skip()
    usd = 0.5 if counts else to_usd(gateway.cost)
    best = t.run(b).account.best
    assert best is not None
    assert (to_usd(best[1].cost), best[1].partial) == (usd, counts or gateway.partial)
    assert best[1].tokens == (140 if counts else gateway.tokens)
    assert cost(t, a, b) == [usd, usd]
    assert t.charged == {"ann": usd}


DEARER = replace(EXACT, cost=to_nanos(0.375), cost_from="agent")
"""What an agent says at its end of the same call, by the price list that it brings along."""


@together("source", ["stream", "session", "report"])
@together("order", [0, 1])
@together(
    ("gateway", "agent", "wins"),
    [
        (EXACT, DEARER, True),
        (replace(EXACT, partial=True), DEARER, True),
        (EXACT, replace(DEARER, partial=True), True),
        (replace(EXACT, unsure_cost=50_000_000), DEARER, True),
        (replace(EXACT, messages=2, input_tokens=500, output_tokens=50), DEARER, True),
        (EXACT, replace(DEARER, messages=None), True),
        # it tells of calls that the gateway has not seen
        (replace(EXACT, input_tokens=99), DEARER, False),
        (replace(EXACT, output_tokens=9), DEARER, False),
        (replace(EXACT, messages=0), DEARER, False),
        # the gateway does not know what they cost
        (replace(EXACT, estimated=True), DEARER, False),
        (replace(EXACT, unpriced_tokens=1), DEARER, False),
        (replace(EXACT, cost=None), DEARER, False),
        # of what tokens its cost is, is not known
        (EXACT, replace(DEARER, input_tokens=None, output_tokens=None), False),
    ],
)
def test_the_gateway_has_the_last_word_of_what_its_calls_cost(
    gateway: Use, agent: Use, source: Source, order: int, *, wins: bool
) -> None:
    """Of no report: its agent may know of other costs."""
    t = Transcript(purses=Sums)
    a = t.start("a", limits="cost=0.3:warn")
    b = t.start("b", inside(a))
    told: list[tuple[Source, Use]] = [("gateway", gateway), (source, agent)]
    for each, figures in told[:: -1 if order else 1]:
        (t >> e.UseSeen(t.at, b, each, figures)).skip()
    wins = wins and source != "report"
    usd = 0.25 if wins else 0.375
    best = t.run(b).account.best
    assert best is not None
    assert to_usd(best[1].cost) == usd
    assert best[1].cost_from == ("agent" if not wins else gateway.cost_from)
    if wins:
        assert best[0] == "gateway"
        assert (best[1].partial, best[1].unsure_cost) == (gateway.partial, gateway.unsure_cost)
        assert t.run(b).account.unsure(COST) == (gateway.unsure_cost or 0)
    assert cost(t, a, b) == [usd, usd]
    assert t.charged == {"ann": usd}
    assert ("over a1 cost 0.375/0.3" in t.said) is (not wins or bool(order))
    (t >> t.exited(b, 0)).skip()
    assert (cost(t, a), t.charged) == ([usd], {"ann": usd})


def test_the_agents_price_of_a_call_under_way_does_not_count_after_one_that_was_measured() -> None:
    """Nor does the figure rise and fall again with each call."""
    account = Account({"gateway": EXACT})
    held = OpenReservation("m", 100, 50, to_nanos(2.0), None, source="gateway", messages=1)
    account.reserve("a1-1", held)
    account.sources["stream"] = EXACT.plus(DEARER)
    assert account.best is not None
    assert (to_usd(account.best[1].cost), account.best[1].tokens) == (0.25, 220)
    assert account.own(COST) == to_nanos(2.25)
    account.release("a1-1")
    account.sources["gateway"] = EXACT.plus(EXACT)
    assert account.best is not None
    assert (to_usd(account.best[1].cost), account.best[1].tokens) == (0.5, 220)


def test_the_word_of_an_agent_that_meters_itself_counts() -> None:
    """It may tell the cost of other things than model calls."""
    t = Transcript()
    a = t.start("a", tells_each_call=True)
    (t >> e.UseSeen(t.at, a, "gateway", EXACT)).skip()
    (t >> e.UseSeen(t.at, a, "stream", DEARER)).skip()
    assert cost(t, a) == [0.375]


def test_the_agents_price_counts_after_a_call_around_the_gateway() -> None:
    t = Life(purses=Sums)
    a = t.start("a", limits="cost=9:warn", gated=True)
    (t >> e.UseSeen(t.at, a, "gateway", EXACT)).skip()
    (t >> e.UseSeen(t.at, a, "stream", DEARER)).skip()
    assert (cost(t, a), t.charged) == ([0.25], {"ann": 0.25})
    (t >> e.ModelReached(t.at, a, "", "api.example")).skip()
    assert (cost(t, a), t.charged) == ([0.375], {"ann": 0.375})
    (t >> t.next_daemon(a)).skip()
    assert cost(t, a) == [0.375]


def test_what_a_child_run_prints_into_its_parents_output_counts_once() -> None:
    """As of a script with `--meter` whose shimmed program inherits its stdout."""
    t = Life(purses=Sums)
    a = t.start("a")
    b = t.start("b", inside(a))
    d = t.start("d", inside(b), prints_in=a)

    def own() -> list[float]:
        found = [t.run(run).account.best for run in (a, b, d) if t.machine.tree.get(run)]
        return [to_usd(best[1].cost or 0) for best in found if best is not None]

    (t >> t.used(a, output_tokens=150, cost=0.375)).skip()
    assert (own(), t.charged) == ([0.375], {"ann": 0.375})
    # the gateway has another price of what the output tells, too
    (t >> t.used(d, "gateway", output_tokens=100, cost=0.2)).skip()
    assert (own(), cost(t, a, b, d)) == ([0.125, 0.2], [0.325, 0.2, 0.2])
    assert t.charged == {"ann": 0.325}
    name = t.reserved(t.reserve(d, 0.3, 1000))
    assert (own(), cost(t, a)) == ([0.125, 0.2], [0.425])
    (t >> t.next_daemon(a, b, d)).skip()
    assert (own(), cost(t, a)) == ([0.125, 0.2], [0.425])
    t.charged.clear()
    (t >> t.settle(name, cost=0.0)).skip()
    assert cost(t, a, b, d) == [0.325, 0.2, 0.2]
    for run in (d, b):
        (t >> t.exited(run, 0)).skip()
    assert (own(), cost(t, a)) == ([0.125], [0.325])
    (t >> t.next_daemon(a)).skip()
    (t >> t.used(a, output_tokens=160, cost=0.4)).skip()
    assert (own(), cost(t, a)) == ([0.15], [0.35])


def test_an_estimate_of_a_call_under_way_is_a_part_of_its_reservation() -> None:
    held = OpenReservation(
        "m", 90, 50, to_nanos(2.0), None, source="gateway", messages=1, more_input=10
    )
    account = Account({"stream": GUESS}, {"a1-1": held})
    assert account.best is not None
    assert (to_usd(account.best[1].cost), account.best[1].tokens) == (0.125, 102)
    assert account.own(COST) == to_nanos(2.0)
    assert account.reserved(COST) == to_nanos(2.0 - 0.125)
    account = Account({"stream": replace(GUESS, input_tokens=101)}, {"a1-1": held})
    assert account.best is not None
    assert to_usd(account.best[1].cost) == 0.5
    assert account.reserved(COST) == to_nanos(2.0 - 0.5)


def test_the_figure_of_a_tree_stays_partial_after_the_end_of_a_run_below() -> None:
    t = Transcript()
    a = t.start("a")
    b, d = t.start("b", inside(a)), t.start("d", inside(a))
    (t >> t.used(b, cost=0.5)).skip()
    (t >> t.exited(b, 0)).skip()
    assert not t.run(a).partial_below
    (t >> t.used(d, cost=0.5, partial=True)).skip()
    (t >> t.exited(d, 0)).skip()
    assert t.run(a).partial_below


def test_after_a_call_around_the_gateway_its_figure_is_partial_and_estimates_count() -> None:
    t = Transcript()
    a = t.start("a", limits="cost=0.5:warn", gated=True)
    (t >> e.UseSeen(t.at, a, "gateway", EXACT)).skip()
    (t >> e.UseSeen(t.at, a, "stream", GUESS)).skip()
    assert cost(t, a) == [0.25]
    (t >> e.ModelReached(t.at, a, "", "api.example")).skip()
    assert (cost(t, a), t.said) == ([0.5], ["near a1 cost 0.5/0.5"])
    (t >> t.used(a, "gateway", cost=0.75)).skip()
    best = t.run(a).account.best
    assert best is not None
    assert (to_usd(best[1].cost), best[1].partial) == (0.75, True)


def test_a_higher_figure_of_the_gateway_yields_to_no_lower_one() -> None:
    """After lost connections a program knows less than what the gateway has passed on."""
    t = Transcript()
    a = t.start("a")
    (
        t >> t.used(a, "gateway", input_tokens=900, output_tokens=90, cost=0.7247, partial=True)
    ).skip()
    (t >> t.used(a, "session", input_tokens=40, output_tokens=9, cost=0.0326)).skip()
    best = t.run(a).account.best
    assert best is not None
    assert (best[1].tokens, to_usd(best[1].cost), best[1].partial) == (990, 0.7247, True)
    assert cost(t, a) == [0.7247]
    (t >> t.used(a, "session", input_tokens=900, output_tokens=100, cost=0.73)).skip()
    best = t.run(a).account.best
    assert best is not None
    assert (best[1].tokens, to_usd(best[1].cost), best[1].partial) == (1000, 0.73, False)


@pytest.mark.parametrize("source", ["report", "stream"])
def test_an_estimated_cost_is_marked_where_it_is_shown(source: Source) -> None:
    t = Transcript()
    a = t.start("a")
    (t >> t.used(a, source, cost=0.5, estimated=True)).skip()
    best = t.run(a).account.best
    assert best is not None
    assert best[1].estimated
    (t >> t.used(a, "gateway", cost=0.5)).skip()
    best = t.run(a).account.best
    assert best is not None
    assert not best[1].estimated


@pytest.mark.parametrize(
    ("pause", "partial"), [(REPLY_OUTLIVES - 1, False), (REPLY_OUTLIVES, True)]
)
def test_what_an_agent_tells_after_a_long_pause_is_partial(pause: float, partial: bool) -> None:
    """The reply that it was reading may have been billed before it made the call again."""
    t = Transcript()
    a, b = t.chain("a", "b")
    (t >> t.used(b, input_tokens=10, output_tokens=1, cost=0.25)).skip()
    (t >> t.pause(a)).skip()
    t.later(pause)
    (t >> t.resume(a)).skip()
    assert t.run(b).account.sources["stream"].partial is partial
    (t >> t.used(b, input_tokens=20, output_tokens=2, cost=0.5)).skip()
    (t >> t.used(b, "gateway", input_tokens=20, output_tokens=2, cost=0.5)).skip()
    assert (
        t.run(b).account.sources["stream"].partial,
        t.run(b).account.sources["gateway"].partial,
    ) == (partial, False)


@pytest.mark.parametrize(
    ("code", "finished", "partial"), [(0, False, False), (1, False, True), (1, True, False)]
)
def test_what_an_agent_told_that_did_not_end_by_itself_is_partial(
    code: int, finished: bool, partial: bool
) -> None:
    t = Transcript()
    a = t.start("a", attempts=2)
    run = t.run(a)
    (t >> t.used(a, input_tokens=10, output_tokens=1, cost=0.25)).skip()
    (t >> t.said_by_agent(a, finished=finished)).skip()
    (t >> t.exited(a, code)).skip()
    assert run.account.sources["stream"].partial is partial


def test_what_an_agent_tells_that_was_stopped_is_partial_though_it_exits_with_0() -> None:
    t = Transcript()
    a = t.start("a")
    run = t.run(a)
    (t >> t.used(a, input_tokens=10, output_tokens=1, cost=0.25)).skip()
    (t >> t.stop(a)).skip()
    (t >> t.exited(a, 0)).skip()
    assert run.account.sources["stream"].partial
