"""What a run reads in its environment is what its caller said and the daemon decided."""

from __future__ import annotations

from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import Claim, ErrorCode
from tests.harness import ended, spawn, started, stopped
from tests.tiers import first

from .conftest import World

SAY = 'echo "$SFA_NAME:$SFA_DEPTH:$SFA_CALL_CHAIN:${SFA_DEFAULTS_TIMEOUT-unset}"'
HOP: dict[str, Any] = {"SFA_CALL_CHAIN": "night,planner", "SFA_NAME": "reviewer", "SFA_DEPTH": "4"}
"""What a process has in a container of run `reviewer`, which is the fifth of its chain."""


def below(*options: str) -> str:
    """Return a script that says what it is told, and has a child do so."""
    return f"{SAY}; $SFACTL run -q --name child {' '.join(options)} -- sh -c '{SAY}'"


def test_a_claimed_chain_goes_on_below_the_run(daemon: World) -> None:
    done = daemon.sfactl(
        "run", "-q", "--max-depth", "9", "--name", "here", "--", "sh", "-c", below(), **HOP
    )
    assert done.stdout.splitlines() == [
        "here:5:night,planner,reviewer:unset",
        "child:6:night,planner,reviewer,here:unset",
    ]


def test_a_second_hop_claims_the_first(daemon: World) -> None:
    """The loop rule sees the whole way: what the run was told is what its own client claims."""
    told = 'env -i PATH="$PATH" SFA_CALL_CHAIN="$SFA_CALL_CHAIN" SFA_NAME=$SFA_NAME env'
    one = daemon.sfactl(
        "run", "-q", "--max-depth", "9", "--name", "here", "--", "sh", "-c", told, **HOP
    )
    claimed = dict(line.split("=", 1) for line in one.stdout.splitlines())
    hop = {name: claimed[name] for name in ("SFA_CALL_CHAIN", "SFA_NAME")}
    again = daemon.sfactl("run", "--name", "planner", "--", "true", code=1, **hop)
    assert "planner → reviewer → here → planner" in again.stderr


@pytest.mark.alone
def test_a_claim_outlives_a_wait_an_attempt_and_the_daemon(daemon: World) -> None:
    counted = daemon.directory / "attempts"
    script = f'{SAY}; echo >> {counted}; [ "$(wc -l < {counted})" -ge 2 ]'
    with Client(daemon.socket) as client:
        first = started(client, ["sleep", "100"]).id
    run = daemon.sfactl(
        "spawn", "--after", first, "--attempts", "2", "--retry-delay", "0", "--name", "late",
        "--max-depth", "9", "--timeout", "50", "--", "sh", "-c", script, **HOP,
    ).stdout.strip()  # fmt: skip
    daemon.kill()
    daemon.begin()
    with Client(daemon.socket) as client:
        stopped(client, first)
        ended(client, run)
    line = "late:5:night,planner,reviewer:50"
    assert daemon.sfactl("logs", run).stdout.splitlines() == [line, line]


@pytest.mark.parametrize("config", ["[guard]\nallow_detach = true\n"])
def test_a_detached_run_begins_a_chain(daemon: World) -> None:
    script = f"$SFACTL spawn --detach --name off -- sh -c '{SAY}'"
    run = daemon.sfactl("run", "-q", "--name", "here", "--", "sh", "-c", script).stdout.strip()
    daemon.sfactl("wait", run)
    assert daemon.sfactl("logs", run).stdout == "off:0::unset\n"


@pytest.mark.parametrize("name", ["a,b", "a\0b"])
def test_a_claimed_name_that_no_variable_could_hold(daemon: World, name: str) -> None:
    with Client(daemon.socket) as client:
        reply = spawn(client, ["true"], claim=Claim(names=[name], depth=1))
    assert isinstance(reply, m.Error)
    assert reply.code is ErrorCode.BAD_REQUEST
    assert reply.message == "a comma or a NUL character in a claimed name"


@pytest.mark.parametrize(
    ("options", "env", "told"),
    [
        ([], {}, "unset"),
        (["--timeout", "1m"], {}, "60"),
        (["--timeout", "90.5"], {"SFA_DEFAULTS_TIMEOUT": "70"}, "90.5"),
        (["--limit", "time=80"], {}, "80"),
        (["--limits", '{"max_duration_ms": 40000}'], {}, "40"),
        ([], {"SFA_DEFAULTS_TIMEOUT": "2m"}, "120"),
        (["--limit", "time=80:warn"], {}, "3600"),
    ],
)
def test_a_run_is_told_its_time(
    daemon: World, options: list[str], env: dict[str, Any], told: str
) -> None:
    script = "echo ${SFA_DEFAULTS_TIMEOUT-unset}"
    assert daemon.sfactl("run", "-q", *options, "--", "sh", "-c", script, **env).stdout == (
        f"{told}\n"
    )


def time_of_child(daemon: World) -> tuple[float, str]:
    (row,) = daemon.json("list", "--name", "child")["runs"][-1:]
    (limit,) = [each for each in row["limits"] if each["kind"] == "time"]
    return limit["threshold"], limit["source"]


@first(3)
@pytest.mark.parametrize(
    ("options", "env", "in_child", "told", "limit"),
    [
        (["--timeout", "50"], {}, "", "50", (120, "default")),
        (["--timeout", "30m"], {}, "--type developer", "600", (600, "type developer")),
        (["--timeout", "50"], {}, "--timeout 9", "9", (9, "--timeout")),
        ([], {"SFA_DEFAULTS_TIMEOUT": "20m"}, "--type developer", "1200",
         (1200, "SFA_DEFAULTS_TIMEOUT")),
        ([], {}, "--type developer", "unset", (600, "type developer")),
    ],
)  # fmt: skip
def test_what_a_run_is_told_does_not_replace_the_defaults_of_its_children(
    daemon: World,
    options: list[str],
    env: dict[str, Any],
    in_child: str,
    told: str,
    limit: tuple[float, str],
) -> None:
    done = daemon.sfactl("run", "-q", *options, "--", "sh", "-c", below(in_child), **env)
    assert done.stdout.splitlines()[1].rpartition(":")[2] == told
    assert time_of_child(daemon) == limit


def test_a_lower_time_that_a_run_sets_itself_counts(daemon: World) -> None:
    script = "SFA_DEFAULTS_TIMEOUT=7 $SFACTL run -q --name child -- true"
    daemon.sfactl("run", "-q", "--timeout", "50", "--", "sh", "-c", script)
    assert time_of_child(daemon) == (7, "SFA_DEFAULTS_TIMEOUT")


def test_a_later_limit_of_time_leaves_the_children_theirs(daemon: World) -> None:
    go = daemon.directory / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.05; done; {below()}"
    run = daemon.spawn("--timeout", "500", "--", "sh", "-c", script)
    for time in ("900", "400"):
        daemon.sfactl("limit", run, f"time={time}")
    go.touch()
    with Client(daemon.socket) as client:
        ended(client, run)
    assert time_of_child(daemon) == (120, "default")


def test_the_bound_of_descendants_is_the_one_that_was_decided(daemon: World) -> None:
    script = "echo $SFA_MAX_DESCENDANTS"
    done = daemon.sfactl(
        "run", "-q", "--max-descendants", "3", "--", "sh", "-c", script, SFA_MAX_DESCENDANTS="7"
    )
    assert done.stdout == "3\n"
