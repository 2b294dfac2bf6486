"""Variables of git in the environment of the caller or the run: git is led nowhere, and obeys no
settings where a copy must be what was sent."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest

from sfactl.worktrees.landing import led
from sfad.features.fleet.files import packing as shipping
from sfad.features.worktrees.record import Record
from sfad.git.commands import SETTINGS

from .test_archives import BEFORE, fill, packed, repository, unpacked, work

pytestmark = pytest.mark.needs("git")

LEADING = {
    "GIT_DIR": ".git", "GIT_WORK_TREE": ".", "GIT_INDEX_FILE": ".git/index",
    "GIT_COMMON_DIR": ".git", "GIT_OBJECT_DIRECTORY": ".git/objects",
}  # fmt: skip
"""Variables that lead git elsewhere, and to what of a repository."""
OF_LISTS = [name for name in LEADING if name != "GIT_OBJECT_DIRECTORY"]
"""Those of them that count where git only lists files."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A repository that no variable may lead to, in which git ignores everything."""
    root = repository(fill(tmp_path / "elsewhere", {"new/deep": b""}))
    (root / ".git/info/exclude").write_text("*\n")
    subprocess.run(["git", "-C", root, "add", "--force", "new/deep"], check=True)
    return root


@pytest.fixture(params=LEADING)
def leading(request: pytest.FixtureRequest, elsewhere: Path) -> dict[str, str]:
    """An environment with one of the variables."""
    return {**os.environ, request.param: str(elsewhere / LEADING[request.param])}


@pytest.fixture
def sent(tmp_path: Path) -> io.BytesIO:
    """The archive of `here`, which was unpacked `there`, where a run has worked."""
    archive = packed(repository(fill(tmp_path / "here", BEFORE)))
    work(unpacked(archive, tmp_path / "there"))
    archive.seek(0)
    return archive


def everything_of(root: Path) -> dict[str, bytes]:
    """Return all files of a repository, those of git too."""
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def tracking(root: Path) -> Path:
    """Return a repository with a commit of a file that git ignores, and with a new file."""
    repository(fill(root, {".gitignore": b"*.log\n", "tracked.log": b"1", "x.log": b""}))
    subprocess.run(["git", "-C", root, "add", "--force", ".gitignore", "tracked.log"], check=True)
    subprocess.run(["git", "-C", root, *COMMIT], check=True)
    return fill(root, {"new": b""})


COMMIT = ["-c", "user.name=n", "-c", "user.email=n@example.com", "commit", "--quiet", "-m", "first"]


@pytest.mark.parametrize("leading", OF_LISTS, indirect=True)
def test_a_survey_looks_at_its_own_directory(
    tmp_path: Path, elsewhere: Path, leading: dict[str, str]
) -> None:
    before = everything_of(elsewhere)
    root = tracking(tmp_path / "a")
    found = shipping.survey(str(root), leading)
    assert (found.paths, found.git) == ([".gitignore", "new", "tracked.log"], True)
    assert everything_of(elsewhere) == before


@pytest.mark.parametrize("leading", ["GIT_INDEX_FILE", "GIT_COMMON_DIR"], indirect=True)
def test_a_survey_looks_at_the_worktree_of_an_isolated_run(
    tmp_path: Path, elsewhere: Path, leading: dict[str, str]
) -> None:
    root, place = tracking(tmp_path / "a"), tmp_path / "worktree"
    words = ["worktree", "add", "--quiet", "-b", "branch", str(place)]
    subprocess.run(["git", "-C", root, *words], check=True)
    Record(
        path=str(place), repository=str(root / ".git"), branch="branch", start="", run="a1",
        socket="", isolated=True,
    ).save()  # fmt: skip
    before = everything_of(elsewhere)
    (place / "new").touch()
    found = shipping.survey(str(place), leading, led(str(place)))
    assert found.paths == [".gitignore", "new", "tracked.log"]
    assert everything_of(elsewhere) == before


def test_the_repository_of_a_copy_is_in_the_copy(
    tmp_path: Path, elsewhere: Path, leading: dict[str, str]
) -> None:
    before = everything_of(elsewhere)
    copy = unpacked(packed(fill(tmp_path / "a", BEFORE)), tmp_path / "copy")
    shipping.begin_repository(str(copy), "Ann <ann@example.com>", leading)
    log = subprocess.run(
        ["git", "-C", copy, "log", "--format=%an %s", "--name-only"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert log.stdout.split() == ["Ann", "shipped", *sorted(BEFORE)]
    assert everything_of(elsewhere) == before


@pytest.mark.parametrize("leading", ["GIT_INDEX_FILE", "GIT_COMMON_DIR"], indirect=True)
def test_changes_are_those_of_the_copy(
    tmp_path: Path, sent: io.BytesIO, elsewhere: Path, leading: dict[str, str]
) -> None:
    before, there = everything_of(elsewhere), str(tmp_path / "there")
    found = shipping.compare(sent, there, leading, git=True)
    assert [each.path for each in found.changes] == [
        ".gitignore", "changed", "gone/deep", "new/deep"
    ]  # fmt: skip
    assert everything_of(elsewhere) == before


@pytest.mark.parametrize("setting", ["commit.gpgSign=true", "core.excludesFile=EXCLUDE"])
@pytest.mark.parametrize("variable", SETTINGS)
def test_a_copy_obeys_no_setting(
    tmp_path: Path, sent: io.BytesIO, variable: str, setting: str
) -> None:
    (tmp_path / "exclude").write_text("*\n")
    key, _, value = setting.replace("EXCLUDE", f"{tmp_path}/exclude").partition("=")
    told = {
        "GIT_CONFIG_COUNT": {"GIT_CONFIG_KEY_0": key, "GIT_CONFIG_VALUE_0": value, variable: "1"},
        "GIT_CONFIG_PARAMETERS": {variable: f"'{key}'='{value}'"},
    }
    env = {**os.environ, **told[variable]}
    copy = unpacked(packed(tmp_path / "here"), tmp_path / "copy")
    shipping.begin_repository(str(copy), "Ann <ann@example.com>", env)
    found = shipping.compare(sent, str(tmp_path / "there"), env, git=True)
    assert "new/deep" in [each.path for each in found.changes]
