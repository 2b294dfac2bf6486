"""Command line and environment become the `Spawn` that is sent."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfactl import environment
from sfactl.exits import UsageError
from sfactl.options import spawn as spawn_options
from sfactl.options.shared import coming
from sfad import agents
from sfad.protocol.known import METERS
from sfad.protocol.messages import Spawn, pack_message, unpack_request
from sfad.protocol.texts.units import MOST_WHOLE
from sfad.protocol.types import Action, Bound, Claim, Limit, LimitKind

from .command_lines import spawn_options_of


def spawn(environ: dict[str, str] | None = None, **given: Any) -> Spawn:
    command = given.pop("command", ["true"])
    options = [
        word
        for name, value in given.items()
        for word in written(f"--{name.replace('_', '-')}", value)
    ]
    return spawn_options.message(spawn_options_of([*options, "--", *command]), environ or {})


def written(flag: str, value: Any) -> list[str]:
    """Return the words of an option."""
    if value is True:
        return [flag]
    return [f"{flag}={each}" for each in (value if isinstance(value, list) else [value])]


def kept(kind: LimitKind, threshold: float, source: str, action: Action | None = None) -> Limit:
    return Limit(kind=kind, threshold=threshold, source=source, action=action)


@pytest.mark.parametrize(
    ("given", "environ", "timeout", "source"),
    [
        ({"timeout": "90"}, {"SFA_DEFAULTS_TIMEOUT": "5"}, 90.0, "--timeout"),
        ({"timeout": "1.5m"}, {}, 90.0, "--timeout"),
        ({"limit": ["time=250ms"]}, {}, 0.25, "--limit time"),
        ({"limit": ["wall=2h"]}, {"SFA_DEFAULTS_TIMEOUT": "5"}, 7200.0, "--limit time"),
        (
            {"limits": '{"max_duration_ms": 500}'},
            {"SFA_DEFAULTS_TIMEOUT": "5"},
            0.5,
            "--limits max_duration_ms",
        ),
        ({}, {"SFA_DEFAULTS_TIMEOUT": "5m"}, 300.0, "SFA_DEFAULTS_TIMEOUT"),
    ],
)
def test_time(given: dict[str, Any], environ: dict[str, str], timeout: float, source: str) -> None:
    assert spawn(environ, **given).limits == [kept(LimitKind.TIME, timeout, source)]


def test_without_limits_none_are_asked_for() -> None:
    message = spawn({"SFA_DEFAULTS_TIMEOUT": " "})
    assert (message.limits, message.on_limit, message.meter) == ([], None, None)


def test_limits_of_every_sort_come_together() -> None:
    message = spawn(
        {"SFA_DEFAULTS_TIMEOUT": "9"},
        limit=["turns=50", "cost=2.50:warn"],
        limits='{"max_tokens": 1000, "timeout_action": "pause"}',
        on_limit="request_increase",
        meter="claude",
    )
    assert message.limits == [
        kept(LimitKind.TURNS, 50, "--limit turns"),
        kept(LimitKind.COST, 2.5, "--limit cost", Action.WARN),
        kept(LimitKind.TOKENS, 1000, "--limits max_tokens", Action.PAUSE),
        kept(LimitKind.TIME, 9, "SFA_DEFAULTS_TIMEOUT"),
    ]
    assert (message.on_limit, message.meter) == (Action.REQUEST_INCREASE, "claude")


def test_an_action_alone_is_as_on_limit() -> None:
    alone = '{"execution_limits": {"timeout_action": "pause"}}'
    assert (spawn(limits=alone).limits, spawn(limits=alone).on_limit) == ([], Action.PAUSE)
    assert spawn(limits=alone, on_limit="pause").on_limit is Action.PAUSE
    with pytest.raises(UsageError, match=r"--on-limit warn and the timeout_action .* differ"):
        spawn(limits=alone, on_limit="warn")


def test_limits_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    file.write_text('{"max_turns": 3}')
    assert spawn(limits=f"@{file}").limits == [kept(LimitKind.TURNS, 3, "--limits max_turns")]
    with pytest.raises(UsageError, match=r"--limits @/nonexistent: No such file"):
        spawn(limits="@/nonexistent")


@pytest.mark.parametrize("given", [{"stdio": "inherit"}, {"no_log": True}])
def test_a_meter_needs_an_output_that_it_can_read(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        spawn(meter="claude", **given)
    assert spawn(meter="none", **given).meter == "none"


def test_a_meter_and_the_variable_that_keeps_no_output() -> None:
    with pytest.raises(UsageError, match="SFA_NO_LOG"):
        spawn({"SFA_NO_LOG": "1"}, meter="claude")


def test_every_meter_is_one_of_the_daemons() -> None:
    assert set(METERS) == {program.name for program in agents.AGENT_PROGRAMS} | {"none", "report"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"timeout": "soon"}, "--timeout"),
        (
            {"timeout": "9", "limit": ["time=9"]},
            "'time' is given twice, by --timeout and by --limit time",
        ),
        ({"limit": ["turns=5", "turn=5"]}, "'turns' is given twice"),
        (
            {"limit": ["cost=5"], "limits": '{"max_cost_usd": 5}'},
            "by --limit cost and by --limits max_cost_usd",
        ),
        ({"limit": ["turns=many"]}, "--limit turns=many: 'many'"),
        ({"limit": ["luck=5"]}, "unknown limit 'luck'; choose from: time, "),
        ({"limits": ""}, "--limits"),
        ({"limits": '{"max_trns": 5}'}, "max_trns"),
        ({"on_limit": "explode"}, "--on-limit: unknown action 'explode'; choose from: terminate, "),
        ({"meter": "clod"}, "--meter: unknown meter 'clod'; choose from: claude, "),
        ({"command": []}, "nothing to run: name an agent"),
        ({"kind": "robot"}, "--kind"),
        ({"stdio": "pipe"}, "--stdio"),
        ({"stdio": "inherit", "stdin": True}, "exclude each other"),
        ({"label": ["nothing"]}, "K=V"),
        ({"attempts": "0"}, "--attempts: '0' is not a whole number from 1"),
        ({"priority": "high"}, "whole number"),
        ({"max_depth": "deep"}, "--max-depth"),
    ],
)
def test_usage_errors_name_what_is_wrong(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        spawn(**given)


@pytest.mark.parametrize(
    "variable", ["SFA_MAX_DEPTH", "SFA_MAX_DESCENDANTS", "SFA_DEFAULTS_TIMEOUT", "SFA_DEPTH"]
)
def test_garbage_in_the_environment_is_a_usage_error_naming_the_variable(variable: str) -> None:
    with pytest.raises(UsageError, match=variable):
        spawn({variable: "many"})


@pytest.mark.parametrize(
    ("flag", "variable", "bound"),
    [
        (None, None, None),
        (3, "9", Bound(value=3, source="--max-depth")),
        (None, "9", Bound(value=9, source="SFA_MAX_DEPTH")),
        (0, "9", None),
        (None, "-1", None),
        (None, "", None),
    ],
)
def test_bounds(flag: int | None, variable: str | None, bound: Bound | None) -> None:
    environ = {} if variable is None else {"SFA_MAX_DEPTH": variable}
    assert environment.bound("--max-depth", flag, "SFA_MAX_DEPTH", environ) == bound


@given(st.integers(-MOST_WHOLE, MOST_WHOLE))
def test_a_bound_that_is_not_positive_is_inherited(value: int) -> None:
    found = environment.bound("--max-depth", value, "SFA_MAX_DEPTH", {})
    assert (found is None) is (value <= 0)


@pytest.mark.parametrize(
    ("environ", "claim"),
    [
        ({}, Claim()),
        ({"SFA_NAME": "a", "SFA_CALL_CHAIN": "", "SFA_DEPTH": "0"}, Claim(names=["a"], depth=1)),
        (
            {"SFA_NAME": "c", "SFA_CALL_CHAIN": "a,b", "SFA_DEPTH": "2"},
            Claim(names=["a", "b", "c"], depth=3),
        ),
        ({"SFA_CALL_CHAIN": "a,b"}, Claim(names=["a", "b"], depth=2)),
        ({"SFA_DEPTH": "4"}, Claim(depth=5)),
    ],
)
def test_the_claimed_chain(environ: dict[str, str], claim: Claim) -> None:
    assert environment.claim(environ) == claim


@pytest.mark.parametrize(
    ("value", "on"), [("1", True), ("yes", True), ("0", False), ("", False), ("No", False)]
)
def test_switches(value: str, on: bool) -> None:
    assert environment.flag("SFA_QUIET", {"SFA_QUIET": value}) is on
    assert spawn({"SFA_NO_LOG": value}).log is not on


def test_what_the_run_gets_from_its_surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environb, b"ODD.name", b"\xff\xfe")
    message = spawn(env=["NEW=1=2", "HOME=/nowhere"], cwd="below/../here")
    assert message.cwd == os.fsencode(tmp_path / "here")
    assert {b"ODD.name=\xff\xfe", b"NEW=1=2", b"HOME=/nowhere"} <= set(message.env)


def test_reading_the_umask_leaves_it() -> None:
    before = os.umask(0o027)
    try:
        assert spawn().umask == 0o027
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5), min_size=1)
)
def test_the_message_survives_the_wire(command: list[str]) -> None:
    wanted = spawn_options.SpawnOptions(command=command)
    message = spawn_options.message(wanted, {})
    assert unpack_request(pack_message(message)[4:]) == message


def test_a_time_to_come() -> None:
    now = datetime(2026, 1, 31, 22, 30)

    def at(text: str) -> datetime:
        return coming(text, now.timestamp()).replace(tzinfo=None)

    assert at("02:00") == datetime(2026, 2, 1, 2)
    assert at("22:30") == now + timedelta(days=1)
    assert at("22:31") == now + timedelta(minutes=1)
    assert at("in 2h") == now + timedelta(hours=2)
    assert at("2026-02-28T02:00") == datetime(2026, 2, 28, 2)
    (after,) = spawn(at="in 2h").after
    assert after.at is not None
    assert after.at.tzinfo is not None


@pytest.mark.parametrize("text", ["", "soon", "25:00", "in soon", "2026-01-31T22:00", "yesterday"])
def test_a_time_that_does_not_come(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time to come|is over"):
        coming(text, datetime(2026, 1, 31, 22, 30).timestamp())
