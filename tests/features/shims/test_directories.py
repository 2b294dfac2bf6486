"""The directory of shims as the daemon sees it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sfad.features.shims import directories
from sfad.features.shims.directories import ShimDirectory
from sfad.features.shims.files import shim_dir
from sfad.protocol.paths import SYSTEM_STATE


def test_only_executables_count_and_only_when_it_looks(tmp_path: Path) -> None:
    found = ShimDirectory(tmp_path)
    found.look()
    assert (found.path, found.programs) == (tmp_path / "shims", [])
    found.path.mkdir()
    (found.path / "claude").touch(0o755)
    (found.path / "notes").touch(0o644)
    assert found.in_path is None
    found.look()
    assert found.programs == ["claude"]
    assert found.in_path == os.fsencode(found.path)


def test_path_cannot_hold_every_name(tmp_path: Path) -> None:
    odd = tmp_path / "a:b" / "shims"
    odd.mkdir(parents=True)
    (odd / "claude").touch(0o755)
    found = ShimDirectory(odd.parent)
    found.look()
    assert (found.programs, found.in_path) == ((), None)


def test_a_users_own_directory_is_for_that_user_and_the_systems_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ShimDirectory(tmp_path)
    assert [own.open_to(uid) for uid in (os.geteuid(), os.geteuid() + 1)] == [True, False]
    monkeypatch.setattr(directories, "SYSTEM_SHIMS", own.path)
    assert own.open_to(os.geteuid() + 1)
    assert shim_dir(SYSTEM_STATE) == Path("/usr/local/lib/sfad/shims")
