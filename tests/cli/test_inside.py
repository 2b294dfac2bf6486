"""Whether a client is inside a run."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from sfactl.connecting import inside


@pytest.mark.parametrize("variable", inside.INSIDE)
def test_inside_a_run_is_told_by_any_of_its_variables(variable: str) -> None:
    assert inside.inside_run({variable: ""}) is not None


@pytest.mark.parametrize(
    ("cgroup", "within"),
    [
        ("/user.slice/sfad-0123456789ab/a1", True),
        ("/sfad-0123456789ab", True),
        ("/system.slice/sfad.service", False),
        ("/sfad-on-demand-12.service", False),
        ("/my-sfad-0123456789ab", False),
    ],
)
def test_inside_a_run_is_told_by_the_cgroup(
    cgroup: str, within: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup").write_text(f"4:cpu:/sfad-0123456789ab\n0::{cgroup}\n")
    monkeypatch.setattr(inside, "OWN_CGROUP", str(tmp_path / "cgroup"))
    # the tests themselves may be in a run with a tag
    monkeypatch.setattr(resource, "getrlimit", lambda _resource: (819200, 819200))
    assert (inside.inside_run({}) is not None) is within


@pytest.mark.parametrize(("soft", "within"), [(4321, True), (819200, False)])
def test_inside_a_run_is_told_by_its_tag(
    soft: int, within: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "OWN_CGROUP", str(tmp_path / "absent"))
    monkeypatch.setattr(resource, "getrlimit", lambda _resource: (soft, 819200))
    assert (inside.inside_run({}) is not None) is within
