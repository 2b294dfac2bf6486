"""Worktrees of runs in each layout that a repository of git can have."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sfad.features.worktrees import worktrees
from sfad.features.worktrees.record import Record
from sfad.git.commands import GitError
from sfad.protocol.types import Status
from tests.conftest import Start
from tests.e2e.test_worktrees import Repository
from tests.harness import Daemon
from tests.users import FIRST, needs_root

pytestmark = pytest.mark.needs("git")


@pytest.fixture
def daemon(share: Start) -> Daemon:
    return share(config="[quotas]\nspawns_per_hour = 100000")


Made = tuple[Repository, Path]
"""The repository, and the checkout in which the run is asked for."""


def plain(top: Path) -> Made:
    repository = Repository(top, directory="sub")
    return repository, repository.path


def bound(top: Path) -> Made:
    repository, checkout = plain(top)
    repository.git("config", "core.worktree", str(checkout))
    repository.git("config", "extensions.worktreeConfig", "true")
    return repository, checkout


def bound_later(top: Path) -> Made:
    """The run itself, or `git sparse-checkout`, sets the extension."""
    repository, checkout = plain(top)
    repository.git("config", "core.worktree", "..")
    return repository, checkout


def separate(top: Path) -> Made:
    repository, checkout = plain(top)
    repository.git("init", "-q", "--separate-git-dir", str(top / "elsewhere.git"))
    return repository, checkout


def separate_and_bound(top: Path) -> Made:
    repository, checkout = separate(top)
    repository.git("config", "core.worktree", str(checkout))
    repository.git("config", "extensions.worktreeConfig", "true")
    return repository, checkout


def bare(top: Path) -> Made:
    repository, _ = plain(top)
    repository.git("clone", "-q", "--bare", str(repository.path), str(top / "bare.git"))
    repository.git("worktree", "add", "-q", str(top / "checkout"), "main", cwd=top / "bare.git")
    return repository, top / "checkout"


def bare_with_configs(top: Path) -> Made:
    repository, checkout = bare(top)
    repository.git("config", "extensions.worktreeConfig", "true", cwd=top / "bare.git")
    repository.git("config", "--unset", "core.bare", cwd=top / "bare.git")
    (top / "bare.git" / "config.worktree").write_text("[core]\n\tbare = true\n")
    return repository, checkout


def submodule(top: Path) -> Made:
    repository, _ = plain(top)
    other, _ = plain(top / "above")
    repository.git("submodule", "add", "-q", str(repository.path), "module", cwd=other.path)
    return repository, other.path / "module"


def submodule_and_bound(top: Path) -> Made:
    repository, checkout = submodule(top)
    repository.git("config", "extensions.worktreeConfig", "true", cwd=checkout)
    return repository, checkout


def sparse(top: Path) -> Made:
    repository, checkout = plain(top)
    (checkout / "left").mkdir()
    (checkout / "left" / "out").write_text("x\n")
    repository.commit("more")
    repository.git("sparse-checkout", "set", "sub")
    return repository, checkout


def partial(top: Path) -> Made:
    repository, _ = plain(top)
    repository.git("config", "uploadpack.allowFilter", "true")
    url = f"file://{repository.path}"
    repository.git("clone", "-q", "--filter=blob:none", url, str(top / "clone"))
    return repository, top / "clone"


def alternates(top: Path) -> Made:
    repository, _ = plain(top)
    repository.git("clone", "-q", "--shared", str(repository.path), str(top / "clone"))
    return repository, top / "clone"


def of_a_worktree(top: Path) -> Made:
    repository, _ = plain(top)
    repository.git("worktree", "add", "-q", str(top / "checkout"), "-b", "other")
    return repository, top / "checkout"


def ignoring_case(top: Path) -> Made:
    repository, checkout = plain(top)
    repository.git("config", "core.ignorecase", "true")
    return repository, checkout


def split_index(top: Path) -> Made:
    repository, checkout = plain(top)
    repository.git("config", "core.splitIndex", "true")
    return repository, checkout


def behind_a_link(top: Path) -> Made:
    repository, checkout = plain(top)
    (top / "link").symlink_to(checkout)
    return repository, top / "link"


LAYOUTS = [
    plain, bound, bound_later, separate, separate_and_bound, bare, bare_with_configs, submodule,
    submodule_and_bound, sparse, partial, alternates, of_a_worktree, ignoring_case, split_index,
    behind_a_link,
]  # fmt: skip

WRECK = """
echo two > sub/file; git add sub/file; git commit -qm two
git config extensions.worktreeConfig true
git rev-parse --show-toplevel
git reset -q --hard HEAD; git clean -qfd
echo three > sub/file
echo new > new
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_works_in_its_worktree_and_nowhere_else(
    daemon: Daemon, tmp_path: Path, layout: Callable[[Path], Made]
) -> None:
    repository, checkout = layout(tmp_path)
    (checkout / "sub" / "file").write_text("edited, not committed\n")
    (checkout / "notes").write_text("untracked\n")
    head = repository.git("rev-parse", "HEAD", cwd=checkout)
    hook = Path(repository.git("rev-parse", "--git-path", "hooks", cwd=checkout).strip())
    hook = checkout / hook / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ngit reset -q --hard; git clean -qfd\n")
    hook.chmod(0o755)
    run = repository.run(daemon, WRECK, cwd=os.fsencode(checkout))
    assert run.status == Status.COMPLETED, daemon.errors(run.id)
    assert daemon.output(run.id) == f"{run.worktree}\n"
    assert (checkout / "sub" / "file").read_text() == "edited, not committed\n"
    assert (checkout / "notes").read_text() == "untracked\n"
    assert repository.git("rev-parse", "HEAD", cwd=checkout) == head
    found = repository.diff(daemon, run)
    assert ("\n-one\n+three" in found, "\n+new" in found) == (True, True), found
    assert "left" not in os.listdir(run.worktree or ""), "sparse as the checkout"
    told = repository.sfactl(daemon, "prune", "--worktrees")
    assert "removed 1 worktree" in told
    assert not os.path.lexists(run.worktree or "")


@needs_root
def test_a_repository_of_another_user_that_the_person_trusts(
    daemon: Daemon, tmp_path: Path
) -> None:
    repository, checkout = plain(tmp_path)
    for place, directories, files in os.walk(checkout):
        for each in (".", *directories, *files):
            os.chown(f"{place}/{each}", FIRST, FIRST, follow_symlinks=False)
    repository.git("config", "--global", "safe.directory", str(checkout))
    run = repository.run(daemon, "git log --oneline | wc -l", cwd=os.fsencode(checkout))
    assert (run.status, daemon.output(run.id)) == ("completed", "1\n"), daemon.errors(run.id)
    assert repository.diff(daemon, run) == ""


def test_a_repository_with_reftables_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    """As git 2.45 can make one. An older git ignores the extension in this version of the format,
    a newer one refuses it."""
    repository, _ = plain(tmp_path)
    repository.git("config", "extensions.refStorage", "reftable")
    assert re.search(r"in reftables|v1-only extension", repository.refused(daemon))


def test_a_worktree_that_git_binds_to_another_directory_is_not_made(tmp_path: Path) -> None:
    """Nothing of the kind is known but core.worktree, which is repaired. So this makes it."""
    repository, checkout = plain(tmp_path)
    before = repository.state()
    hook = checkout / ".git" / "hooks" / "post-checkout"
    hook.write_text(
        "#!/bin/sh\ngit config extensions.worktreeConfig true\n"
        f"git config core.worktree '{checkout}'\n"
    )
    hook.chmod(0o755)
    path = f"{repository.home}/.local/share/sfad/worktrees/x-1"
    start = repository.git("rev-parse", "HEAD").strip()
    record = Record(
        path=path, repository=f"{checkout}/.git", branch="sfad/x", start=start, run="1", socket="/"
    )
    with pytest.raises(GitError, match=f"git takes {checkout} for the top level"):
        worktrees.make(record, str(checkout), repository.env, found=False)
    subprocess.run(["git", "config", "--unset", "core.worktree"], cwd=checkout, check=True)
    assert repository.state() == before
