"""Command line and environment make the `Spawn` that SPEC sections 2, 3 and 15 say they make."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfactl import environment, request
from sfactl.exits import UsageError
from sfad.protocol.messages import Spawn, pack_message, unpack_request
from sfad.protocol.types import Bound, Claim


def spawn(environ: dict[str, str] | None = None, **given: Any) -> Spawn:
    wanted = request.Wanted(command=["true"], **given)
    request.check(wanted)
    return request.message(wanted, 7, environ or {})


@pytest.mark.parametrize(
    ("given", "environ", "timeout", "source"),
    [
        ({}, {}, None, "default"),
        ({"timeout": "90"}, {"SFA_DEFAULTS_TIMEOUT": "5"}, 90.0, "--timeout"),
        ({"timeout": "1.5m"}, {}, 90.0, "--timeout"),
        ({"limit": ["time=250ms"]}, {}, 0.25, "--limit time"),
        ({"limit": ["wall=2h:terminate"]}, {}, 7200.0, "--limit time"),
        ({}, {"SFA_DEFAULTS_TIMEOUT": "5m"}, 300.0, "SFA_DEFAULTS_TIMEOUT"),
    ],
)
def test_timeout(given: dict[str, Any], environ: dict[str, str], timeout: float | None, source: str) -> None:
    message = spawn(environ, **given)
    assert (message.timeout, message.timeout_source) == (timeout, source)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"timeout": "soon"}, "--timeout"),
        ({"timeout": "9", "limit": ["time=9"]}, "more than once"),
        ({"limit": ["turns=5"]}, "not in this release"),
        ({"limit": ["time=5:pause"]}, "not in this release"),
        ({"meter": "claude"}, "--meter is not in this release"),
        ({"nested": True}, "--nested is not in this release"),
        ({"agent": "reviewer"}, "registered agent"),
        ({"kind": "robot"}, "--kind"),
        ({"stdio": "pipe"}, "--stdio"),
        ({"stdio": "inherit", "stdin": True}, "exclude each other"),
        ({"label": ["nothing"]}, "K=V"),
        ({"attempts": "0"}, "less than 1"),
        ({"priority": "high"}, "whole number"),
        ({"max_depth": "deep"}, "--max-depth"),
    ],
)
def test_usage_errors_name_what_is_wrong(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        spawn(**given)


@pytest.mark.parametrize("variable", ["SFA_MAX_DEPTH", "SFA_MAX_DESCENDANTS", "SFA_DEFAULTS_TIMEOUT", "SFA_DEPTH"])
def test_garbage_in_the_environment_is_a_usage_error_naming_the_variable(variable: str) -> None:
    with pytest.raises(UsageError, match=variable):
        spawn({variable: "many"})


@pytest.mark.parametrize(
    ("flag", "variable", "bound"),
    [
        (None, None, None),
        ("3", "9", Bound(value=3, source="--max-depth")),
        (None, "9", Bound(value=9, source="SFA_MAX_DEPTH")),
        ("0", "9", None),
        (None, "-1", None),
        (None, "", None),
    ],
)
def test_bounds(flag: str | None, variable: str | None, bound: Bound | None) -> None:
    environ = {} if variable is None else {"SFA_MAX_DEPTH": variable}
    assert environment.bound("--max-depth", flag, "SFA_MAX_DEPTH", environ) == bound


@given(st.integers())
def test_a_bound_that_is_not_positive_is_inherited(value: int) -> None:
    found = environment.bound("--max-depth", str(value), "SFA_MAX_DEPTH", {})
    assert (found is None) is (value <= 0)


@pytest.mark.parametrize(
    ("environ", "claim"),
    [
        ({}, Claim()),
        ({"SFA_NAME": "a", "SFA_CALL_CHAIN": "", "SFA_DEPTH": "0"}, Claim(names=["a"], depth=1)),
        ({"SFA_NAME": "c", "SFA_CALL_CHAIN": "a,b", "SFA_DEPTH": "2"}, Claim(names=["a", "b", "c"], depth=3)),
        ({"SFA_CALL_CHAIN": "a,b"}, Claim(names=["a", "b"], depth=2)),
        ({"SFA_DEPTH": "4"}, Claim(depth=5)),
    ],
)
def test_the_claimed_chain(environ: dict[str, str], claim: Claim) -> None:
    assert environment.claim(environ) == claim


@pytest.mark.parametrize(("value", "on"), [("1", True), ("yes", True), ("0", False), ("", False), ("No", False)])
def test_switches(value: str, on: bool) -> None:
    assert environment.flag("SFA_QUIET", {"SFA_QUIET": value}) is on
    assert spawn({"SFA_NO_LOG": value}).log is not on


@pytest.mark.parametrize("variable", environment.INSIDE)
def test_inside_a_run_is_told_by_any_of_its_variables(variable: str) -> None:
    assert environment.inside_run({variable: ""}) is not None


@pytest.mark.parametrize(
    ("cgroup", "inside"),
    [
        ("/user.slice/sfad-0123456789ab/a1/self", True),
        ("/sfad-0123456789ab", True),
        ("/system.slice/sfad.service", False),
        ("/sfad-on-demand-12.service", False),
        ("/my-sfad-0123456789ab", False),
    ],
)
def test_inside_a_run_is_told_by_the_cgroup(cgroup: str, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_own_cgroup", lambda: cgroup)
    monkeypatch.setattr(environment, "_tagged", lambda: False)
    assert (environment.inside_run({}) is not None) is inside


def test_what_the_run_gets_from_its_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5), min_size=1))
def test_the_message_survives_the_wire(command: list[str]) -> None:
    wanted = request.Wanted(command=command)
    message = request.message(wanted, 7, {})
    assert unpack_request(pack_message(message)[4:]) == message
