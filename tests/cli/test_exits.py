"""Each outcome has its exit code (docs/states.md)."""

from __future__ import annotations

import errno
import signal
from typing import Any

import pytest

from sfactl import exits
from sfad.protocol.types import ErrorCode, Refusal, Rule, Status
from tests.together import together

from .samples import reason, run


@pytest.mark.parametrize(
    ("status", "changes", "code"),
    [
        (Status.COMPLETED, {"exit_code": 0}, 0),
        (Status.TIMEOUT, {"exit_code": 0, "reason": reason("limit", limit_kind="time")}, 3),
        (Status.FAILED, {"reason": reason("limit", limit_kind="turns"), "exit_code": 0}, 4),
        (Status.FAILED, {"exit_code": 7, "reason": reason("exit")}, 7),
        (Status.FAILED, {"exit_code": 3, "reason": reason("exit")}, 3),
        (Status.FAILED, {"signal": signal.SIGSEGV, "reason": reason("signal")}, 139),
        (
            Status.FAILED,
            {"reason": reason("launch", "cannot run nope: No such file", errno=errno.ENOENT)},
            127,
        ),
        (
            Status.FAILED,
            {
                "reason": reason(
                    "launch", "cannot enter directory /x: …", errno=errno.ENOENT, about="directory"
                )
            },
            126,
        ),
        (Status.FAILED, {"reason": reason("launch", errno=errno.EACCES)}, 126),
        (Status.CANCELLED, {"exit_code": 0, "reason": reason("stop")}, 143),
        (Status.CANCELLED, {"reason": reason("ancestor")}, 143),
        (Status.LOST, {}, 70),
        (Status.RUNNING, {}, 75),
        (Status.QUEUED, {}, 75),
    ],
)
def test_outcome(status: Status, changes: dict[str, Any], code: int) -> None:
    assert exits.of_run(run(status, **changes)) == code


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED, Status.TIMEOUT, Status.LOST])
def test_an_exit_status_of_zero_never_makes_another_outcome_a_success(status: Status) -> None:
    assert exits.of_run(run(status, exit_code=0)) != 0


@pytest.mark.parametrize("rule", list(Rule))
def test_refusal(rule: Rule) -> None:
    expected = 77 if rule is Rule.PERMISSION else 1
    assert exits.of_refusal(Refusal(kind=rule, detail="", message="")) == expected
    assert exits.of_run(run(rule.status)) == expected


@together("status", list(Status))
def test_only_completed_is_zero(status: Status) -> None:
    assert (exits.of_run(run(status)) == 0) is (status is Status.COMPLETED)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_no_error_is_a_success(code: ErrorCode) -> None:
    assert exits.of_error(code) in exits.MEANINGS.keys() - {exits.ExitCode.DONE}


def test_the_table_shows_every_code_with_its_meaning() -> None:
    codes = {value for name, value in vars(exits.ExitCode).items() if name.isupper()}
    assert codes == exits.MEANINGS.keys()
    for code, meaning in exits.MEANINGS.items():
        assert f"{code}  {meaning}" in exits.table()


def test_the_worst_code_of_several_runs() -> None:
    assert exits.worst([]) == exits.worst([0, 0]) == 0
    assert exits.worst([0, 1, 66]) == 66
    assert exits.worst([66, 77, 1]) == 77
    assert exits.worst([77, 5]) == 5
    assert {exits.worst([exits.of_error(code)]) for code in ErrorCode} == {1, 2, 66, 69, 70, 75, 77}
