"""The words for what is wrong with a run, and for what has happened to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sfactl import output
from sfactl.commands import tree, why
from sfactl.commands.info import moments
from sfad.protocol.types import ApiSilence, ApiTrouble, Event, LimitKind, Repetition, Status

from .samples import NOON, hold, reason, run, state

LATER = NOON + timedelta(seconds=90)
SILENT = ApiSilence(host="api.example.com", since=LATER - timedelta(seconds=33))


def test_why_says_the_trouble_first_with_its_numbers_and_since_when() -> None:
    found = run(
        api_silence=SILENT,
        api_trouble=ApiTrouble(count=6, status=529, error="overloaded"),
        repeating=Repetition(tool="Bash", count=12),
        limits=[
            state(LimitKind.COST, 5.0, used=4.1),
            state(LimitKind.TURNS, 100, used=97),
            state(LimitKind.TIME, 3600, used=90),
        ],
        deadline=None,
    )
    since = output.clock(SILENT.since, LATER)
    assert why.sentence(found, LATER).startswith(
        f"a1 (worker) has been waiting 33s for api.example.com's first byte, since {since}; "
        "it cannot reach its model: the API answered 529 six times: overloaded; it repeats itself: "
        "its model asked for the tool 'Bash' with the same arguments 12 times in a row; "
        "it is near its limit: turns 97 of 100 (97 %); it is near its limit: "
        "cost 4.10 of 5.00 USD (82 %); it is running; it is bounded by "
    )


@pytest.mark.parametrize(
    ("used", "place"), [(4.0, "near its limit: cost 4.00"), (5.1, "over its limit: cost 5.10")]
)
def test_a_limit_that_is_exceeded_is_not_only_near(used: float, place: str) -> None:
    found = run(limits=[state(LimitKind.COST, 5.0, used=used)])
    assert why.sentence(found, LATER).startswith(f"a1 (worker) is {place} of 5.00 USD (")


def test_of_a_run_that_is_being_stopped_the_reason_comes_first() -> None:
    limit, used = state(LimitKind.COST, 5.0, used=5.1), reason("limit", "used 5.10 USD")
    found = run(Status.STOPPING, limits=[limit], reason=used)
    assert why.sentence(found, LATER).startswith("a1 (worker) is stopping: used 5.10 USD")


def test_a_run_that_waits_for_approval_shows_how_long_it_may() -> None:
    def paused_by(kind: str, until: datetime | None = None) -> str:
        held = hold(kind, until=until, limit_kind=LimitKind.COST)
        found = run(Status.PAUSED, holds=(held,))
        assert output.outcome(found) in tree.describe(found)
        return output.outcome(found)

    soon = datetime.now(UTC) + timedelta(days=3, minutes=30)
    assert paused_by("approval", soon) == "paused (waits for approval, 3d00h left)"
    assert paused_by("approval") == "paused (waits for approval)"
    assert paused_by("limit") == "paused (limit cost)"
    assert paused_by("limit", soon) == "paused (limit cost)"


def test_a_list_tells_why_a_run_waits_and_worse_things_than_a_call_that_does() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=30)
    retry = hold("retry", blocks="start", until=soon)
    assert output.outcome(run(Status.RETRYING, holds=(retry,))).startswith("retrying (next attempt")
    assert output.outcome(run(Status.QUEUED, holds=(hold("slot", blocks="start"),))) == "queued"
    several = (hold("suspended"), hold("person"))
    assert output.outcome(run(Status.PAUSED, holds=several)) == "paused (suspended)"
    assert output.outcome(run(Status.PAUSED, holds=(hold("newer"),))) == "paused"
    call = hold("call", blocks="call")
    assert output.outcome(run(holds=(call,))) == "running (a model call waits)"
    failing = ApiTrouble(count=6, status=529)
    assert output.outcome(run(holds=(call,), api_trouble=failing)) == "running (API 529)"


def test_why_says_when_it_happened() -> None:
    over = run(
        Status.FAILED, reason=reason("exit", "exited with code 1"), ended_at=LATER, exit_code=1
    )
    ended = output.clock(LATER, LATER)
    assert (
        why.sentence(over, LATER)
        == f"a1 (worker) ended as failed at {ended} after 3.0s: exited with code 1"
    )
    held = hold("person", "by hand", since=LATER)
    assert f"is paused since {ended}: by hand" in why.sentence(
        run(Status.PAUSED, holds=(held,)), LATER
    )


def test_a_silent_api_is_in_the_status_and_a_near_limit_in_the_tree() -> None:
    assert output.outcome(run(api_silence=SILENT)).startswith("running (waiting ")
    assert output.outcome(run(api_silence=SILENT)).endswith(" for api.example.com)")
    near = run(
        limits=[state(LimitKind.COST, 5.0, used=4.9999), state(LimitKind.OUTPUT, 100, used=100)],
        milestone="half\x1b[2J",
    )
    assert tree.describe(near).endswith("  cost 99 %  half\\x1b[2J")


def test_a_timeline_has_times_and_steers_no_terminal() -> None:
    events = [
        Event(type="run_accepted", time=NOON, seq=1, run_id="a1"),
        Event(
            type="run_progress",
            time=LATER,
            seq=2,
            run_id="a1",
            message="half \x1b[2J\u202e",
            by="run a1",
        ),
        Event(
            type="limit_changed",
            time=LATER,
            seq=3,
            run_id="a1",
            message="turns 5 → 9, by user ann",
            by="user ann",
        ),
    ]
    shown = [line.partition("  ")[2].strip() for line in moments(run(), events)]
    assert shown == [
        "+0.0s  accepted",
        "+1m30s  milestone: half \\x1b[2J\\u202e",
        "+1m30s  limit changed: turns 5 → 9, by user ann",
    ]
