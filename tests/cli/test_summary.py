"""`sfactl summary`."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from sfactl.commands import summary
from sfad.core.state.run import run_id
from sfad.protocol.requests.summary import Breach, Failed, Summary
from tests.harness import wait_until

from .conftest import World

CONTRACT = {
    "since",
    "until",
    "runs",
    "by_status",
    "cost_usd",
    "tokens",
    "partial",
    "groups",
    "breaches",
    "failed",
    "at_most",
    "lines",
    "waiting",
}


def test_a_night_in_numbers_each_run_counted_once(night: World) -> None:
    found = night.json("summary", "--since", "100d")
    assert set(found) == CONTRACT
    assert (found["runs"], found["by_status"]) == (700, {"completed": 693, "failed": 7})
    assert (found["cost_usd"], found["tokens"], found["partial"]) == (175.0, 70_000, True)
    whole = {"at_most": False, "plans": []}
    assert found["groups"] == [
        {
            "key": "clerk",
            "runs": 600,
            "cost_usd": 150.0,
            "tokens": 60_000,
            "failed": 6,
            "checked": 0,
            "unchecked": 594,
            "partial": True,
        }
        | whole,
        {
            "key": "boss",
            "runs": 100,
            "cost_usd": 25.0,
            "tokens": 10_000,
            "failed": 1,
            "checked": 0,
            "unchecked": 99,
            "partial": False,
        }
        | whole,
    ]
    turns = {
        "limit_kind": "turns",
        "used": 26.0,
        "threshold": 25.0,
        "scope": "run",
        "refused": False,
        "reserved": None,
    }
    assert found["breaches"] == [{"run_id": run_id(number), **turns} for number in (200, 699)]
    assert [one["reason"] for one in found["failed"]] == ["exited with 3"] * 7


def test_it_covers_what_list_covers(night: World) -> None:
    words = ("--since", "90m", "--label", "n=1", "--label", "n=2", "--name", "clerk")
    listed, found = night.json("list", "--sum", *words), night.json("summary", *words)
    assert found["runs"] == len(listed["runs"]) > 0
    assert {field: found[field] for field in ("cost_usd", "tokens", "partial")} == {
        field: listed["sum"][field] for field in ("cost_usd", "tokens", "partial")
    }
    assert [one["run_id"] for one in found["breaches"]] == []


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("user", {"ann": 700}),
        ("type", {None: 700}),
        ("model", {"big": 600, "small": 100}),
        (
            "label",
            {"shift=early": 350, "shift=late": 350} | {f"n={digit}": 70 for digit in range(10)},
        ),
    ],
)
def test_groups(night: World, by: str, keys: dict[str | None, int]) -> None:
    groups = night.json("summary", "--since", "100d", "--by", by)["groups"]
    assert {one["key"]: one["runs"] for one in groups} == keys


def test_the_report_for_people(night: World) -> None:
    shown = night.sfactl("summary", "--since", "100d").stdout
    for words in (
        "700 runs: 693 completed, 7 failed",
        "at least 175.00 USD, 70.0k tokens",
        "most expensive runs",
        "26 of 25",
    ):
        assert words in shown
    assert "exited with 3: " in shown
    assert "choose from: name, label" in night.sfactl("summary", "--by", "colour", code=2).stderr


@pytest.mark.alone
def test_live_runs_count_and_a_model_that_was_reported_is_known(daemon: World) -> None:
    report = (
        "$SFACTL report --turns 1 --model claude-sonnet-4-5 --input-tokens 1000 --output-tokens "
        "10 --cost 0.5"
    )
    daemon.sfactl("run", "-q", "--", "sh", "-c", report)
    daemon.spawn("--type", "qa", "--", "sh", "-c", f"{report}; sleep 60")
    daemon.sfactl("run", "-q", "--name", "bad", "--", "sh", "-c", "exit 3", code=3)
    wait_until(
        lambda: daemon.json("summary", "--by", "model")["cost_usd"] == 1.0,
        "the second has reported",
    )
    found = daemon.json("summary", "--by", "model")
    assert found["by_status"] == {"completed": 1, "failed": 1, "running": 1}
    assert {one["key"]: one["runs"] for one in found["groups"]} == {"claude-sonnet-4-5": 2, None: 1}
    assert [one["name"] for one in found["failed"]] == ["bad"]


def test_runs_that_failed_for_the_same_reason_share_a_line() -> None:
    failed = [
        Failed(run_id=f"a{n}", name="x", reason="exited with 3" if n % 2 else "out of\nluck")
        for n in range(1, 6)
    ]
    assert list(summary.failures(failed)) == [
        "exited with 3: a1 (x), a3 (x), a5 (x)",
        "out of\\x0aluck: a2 (x), a4 (x)",
    ]


def test_a_failure_deep_in_a_tree_has_one_line(daemon: World) -> None:
    fail = "test $1 = 0 && { echo no such key >&2; exit 3; }"
    script = f'{fail}; exec $SFACTL run --name deep-$1 -- sh -c "$0" "$0" $(($1 - 1))'
    top = daemon.sfactl(
        "spawn", "-q", "--wait", "--name", "top", "--", "sh", "-c", script, script, "2", code=3
    )
    assert "no such key" in top.stderr
    (line,) = (
        line for line in daemon.sfactl("summary").stdout.splitlines() if "no such key" in line
    )
    assert re.fullmatch(
        r"  exited with code 3: no such key: \w+ \(top\), \w+ \(deep-2\), \w+ \(deep-1\)", line
    )


def test_a_night_without_runs() -> None:
    nothing: dict[str, Any] = {key: [] for key in ("groups", "breaches", "failed")}
    when = "2026-01-02T03:04:05Z"
    empty = {
        "since": when,
        "until": when,
        "runs": 0,
        "by_status": {},
        "cost_usd": None,
        "tokens": None,
        "partial": False,
    }
    found = msgspec.convert(empty | nothing, Summary)
    assert [line for part in summary.parts(found, "name") for line in part][1:] == ["0 runs"]
    budget = Breach(run_id="a7", limit_kind="cost", used=3.14, threshold=3.0, scope="user")
    exceeded = msgspec.structs.replace(
        found,
        runs=1,
        breaches=[budget, msgspec.structs.replace(budget, scope="tree", refused=True)],
    )
    assert list(summary.parts(exceeded, "name"))[1:] == [
        [
            "limits exceeded",
            "  a7  budget of its user, cost 3.14 of 3.00 USD",
            "  a7  cost 3.14 of 3.00 USD, and more was refused",
        ]
    ]


@pytest.mark.alone
@pytest.mark.parametrize("config", ["[quotas]\ntrees_per_user = 4\n"])
def test_it_begins_with_what_waits_for_a_person(daemon: World) -> None:
    report = "$SFACTL report --turns 2; sleep 60"
    by_hand = daemon.spawn("--name", "hand", "--", "sleep", "60")
    limited = daemon.spawn(
        "--limit", "turns=1:pause", "--name", "limited", "--", "sh", "-c", report
    )
    asking = daemon.spawn(
        "--limit", "turns=1:request_increase", "--name", "asking", "--", "sh", "-c", report
    )
    silent = (
        'echo \'{"type": "system", "subtype": "api_retry", "attempt": 1, "error_status": '
        '529, "error": "overloaded"}\'; sleep 60'
    )
    unreachable = daemon.spawn(
        "--meter", "claude", "--name", "cut-off", "--timeout", "90s", "--", "sh", "-c", silent
    )
    queued = [daemon.spawn("--name", "late", "--", "sleep", "60") for _ in range(2)]
    daemon.sfactl("run", "-q", "--no-queue", "--", "true", code=None)
    daemon.sfactl("pause", by_hand)
    wait_until(
        lambda: [daemon.status(run) for run in (limited, asking)] == ["paused"] * 2,
        "they are paused",
    )
    wait_until(
        lambda: daemon.json("info", unreachable).get("api_trouble"), "it cannot reach its model"
    )
    waits = daemon.json("summary")["waiting"]
    found = {(one["what"], *one["runs"]): one["command"] for one in waits}
    assert found == {
        ("paused", by_hand): f"sfactl resume {by_hand}",
        ("paused", limited): f"sfactl resume {limited} [--limit turns=N]",
        ("approval", asking): f"sfactl approve {asking} [--limit turns=N], or sfactl deny {asking}",
        (
            "unreachable",
            unreachable,
        ): f"sfactl logs {unreachable} --stderr, or sfactl stop {unreachable}",
        ("queued", *queued): f"sfactl why {queued[0]}",
        ("refused",): "sfactl list --status rejected_concurrency",
    }
    shown = daemon.sfactl("summary").stdout
    assert shown.startswith("waiting for you\n")
    assert f"{limited} (limited) is paused: used 2 turns" in shown
    why = daemon.sfactl("why", queued[1]).stdout
    assert (
        "is queued: you have 4 live trees, and quotas.trees_per_user is 4; "
        "it is number 2 of 2 that wait"
    ) in why
    assert re.search(r"; a slot is free when a tree ends, at the latest at [\d:]+, in \d+", why)
    [hold] = daemon.json("info", queued[1])["holds"]
    assert (hold["kind"], hold["until"] is not None) == ("slot", True)


@pytest.mark.alone
def test_a_run_that_may_not_list_gets_its_summary(daemon: World) -> None:
    shown = daemon.sfactl(
        "run", "-q", "--deny", "list", "--", "sh", "-c", "$SFACTL summary --json"
    ).stdout
    assert msgspec.json.decode(shown)["waiting"] == []
