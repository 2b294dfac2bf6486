"""Whether a client is inside a run."""

from __future__ import annotations

import pytest

from sfactl import inside


@pytest.mark.parametrize("variable", inside.INSIDE)
def test_inside_a_run_is_told_by_any_of_its_variables(variable: str) -> None:
    assert inside.inside_run({variable: ""}) is not None


@pytest.mark.parametrize(
    ("cgroup", "within"),
    [
        ("/user.slice/sfad-0123456789ab/a1/self", True),
        ("/sfad-0123456789ab", True),
        ("/system.slice/sfad.service", False),
        ("/sfad-on-demand-12.service", False),
        ("/my-sfad-0123456789ab", False),
    ],
)
def test_inside_a_run_is_told_by_the_cgroup(cgroup: str, within: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "_own_cgroup", lambda: cgroup)
    monkeypatch.setattr(inside, "_tagged", lambda: False)
    assert (inside.inside_run({}) is not None) is within
