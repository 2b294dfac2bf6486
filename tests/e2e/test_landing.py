"""`sfactl land`: the work of runs comes home, as a whole or not at all."""

from __future__ import annotations

import codecs
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sfactl.worktrees.landing import work_left
from sfad.git import commands
from sfad.protocol import messages as m
from sfad.protocol.types import Isolation, RunInfo, Worktree
from tests.conftest import Start
from tests.e2e.test_worktree_layouts import LAYOUTS, Made
from tests.e2e.test_worktrees import Repository
from tests.harness import Daemon, ended, running, started, stopped
from tests.top.terminal import top
from tests.users import FIRST, as_user, needs_root, open_directory, readable_by_all
from tests.web.console import Console

pytestmark = pytest.mark.needs("git")
BWRAP = pytest.mark.needs("bwrap")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path, directory="sub")


@pytest.fixture
def daemon(share: Start) -> Daemon:
    return share(config="[quotas]\nspawns_per_hour = 100000")


def sfactl(
    repository: Repository, daemon: Daemon, *words: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sfactl", *words],
        env=daemon.env | repository.env,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        cwd=cwd or repository.path,
        check=False,
    )


def land(
    repository: Repository, daemon: Daemon, run: RunInfo, *words: str, cwd: Path | None = None
) -> dict[str, Any]:
    done = sfactl(repository, daemon, "land", run.id, "--json", *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def refused(
    repository: Repository, daemon: Daemon, run: RunInfo, *words: str, cwd: Path | None = None
) -> str:
    """Return why nothing has landed. Nothing of the checkout has changed."""
    before = everything(cwd or repository.path)
    done = sfactl(repository, daemon, "land", run.id, *words, cwd=cwd)
    assert done.returncode == 1, done.stdout + done.stderr
    assert everything(cwd or repository.path) == before
    return done.stderr


def everything(top: Path) -> dict[str, object]:
    """Return each file of a checkout, with its mode and its time, and what git says of it."""
    found: dict[str, object] = {}
    for place, directories, files in os.walk(top):
        if ".git" in directories:
            directories.remove(".git")
        for name in files:
            path = Path(place) / name
            stat = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes()
            found[str(path)] = (content, stat.st_mode, stat.st_mtime_ns)
    for words in (["status", "--porcelain"], ["rev-parse", "HEAD"], ["diff", "--cached"]):
        said = subprocess.run(["git", *words], cwd=top, capture_output=True, check=False)
        found[" ".join(words)] = said.stdout
    return found


def test_uncommitted_work_lands_with_one_command(daemon: Daemon, repository: Repository) -> None:
    run = repository.run(daemon, "echo two > file; echo new > new", name="w")
    told = land(repository, daemon, run)
    assert (told["landed"], told["onto"], told["files"]) == (
        "merge",
        "main",
        ["sub/file", "sub/new"],
    )
    assert (repository.sub / "file").read_text() == "two\n"
    assert repository.state()[2] == ""
    author, subject = repository.git("log", "-1", "--format=%an <%ae>%n%s").splitlines()
    assert author == "n <n@example.com>"
    assert (run.id in subject, "w" in subject) == (True, True)
    assert repository.git("rev-parse", "HEAD").strip() == told["commit"] == told["committed"]
    again = land(repository, daemon, run)
    assert (again["landed"], again["commit"]) == ("nothing", told["commit"])
    assert "removed 1 worktree" in repository.sfactl(daemon, "prune", "--keep", "0"), (
        "nothing of it would be lost"
    )


def test_several_runs_land_one_after_the_other_and_a_refused_one_does_not_keep_the_rest(
    daemon: Daemon, repository: Repository
) -> None:
    scripts = ("echo a > a", "echo x > file", "echo y > file", "echo b > b")
    runs = [repository.run(daemon, script) for script in scripts]
    names = [runs[0].id, "no-such", *(run.id for run in runs[1:])]
    done = sfactl(repository, daemon, "land", *names)
    assert done.returncode == 66, done.stderr
    landed = [line.split()[0] for line in done.stdout.splitlines()]
    assert landed == [runs[at].id for at in (0, 1, 3)]
    first, second = done.stderr.splitlines()
    assert first.startswith("sfactl: no run has the id or the name 'no-such'")
    assert second.startswith(f"sfactl: run {runs[2].id} has not landed: it conflicts")
    assert [(repository.sub / name).exists() for name in "ab"] == [True, True]
    done = sfactl(repository, daemon, "land", "--json", *(run.id for run in runs))
    assert done.returncode == 1
    told = [json.loads(line)["landed"] for line in done.stdout.splitlines()]
    assert told == ["nothing", "nothing", "refused", "nothing"]


def test_a_run_that_has_changed_nothing(daemon: Daemon, repository: Repository) -> None:
    run = repository.run(daemon, "true")
    assert land(repository, daemon, run)["landed"] == "nothing"


def test_what_is_committed_and_what_is_not_land_together_where_the_branch_has_moved_on(
    daemon: Daemon, repository: Repository
) -> None:
    run = repository.run(daemon, "echo a > a; git add a; git commit -qm a; echo b > b")
    (repository.path / "mine").write_text("mine\n")
    repository.commit("mine")
    (repository.path / "staged").write_text("staged\n")
    repository.git("add", "staged")
    (repository.path / "mine").write_text("edited\n")
    (repository.path / "untracked").write_text("untracked\n")
    land(repository, daemon, run)
    parents = repository.git("log", "-1", "--format=%p").split()
    assert len(parents) == 2
    assert repository.git("log", "-1", "--format=%s").startswith(f"Merge branch '{run.branch}'")
    assert ((repository.sub / "a").read_text(), (repository.sub / "b").read_text()) == (
        "a\n",
        "b\n",
    )
    assert repository.state()[2] == " M mine\nA  staged\n?? untracked\n"


def test_squash(daemon: Daemon, repository: Repository) -> None:
    run = repository.run(daemon, "echo a > a; git add a; git commit -qm a; echo b > b")
    land(repository, daemon, run, "--squash", "-m", "Add a and b")
    assert repository.git("log", "--format=%s") == "Add a and b\nfirst\n"
    assert run.id in repository.git("log", "-1", "--format=%b")
    assert repository.state()[2] == ""
    for more in ([], ["--squash"], ["--patch"]):
        assert land(repository, daemon, run, *more)["landed"] == "nothing"


def test_a_patch_changes_files_only(daemon: Daemon, repository: Repository) -> None:
    run = repository.run(
        daemon, "echo a > a; git add a; git commit -qm a; echo two > file; printf 'x\\0y' > binary"
    )
    (repository.path / "staged").write_text("staged\n")
    repository.git("add", "staged")
    head = repository.git("rev-parse", "HEAD")
    told = land(repository, daemon, run, "--patch")
    assert (told["landed"], told["committed"]) == ("patch", None)
    assert repository.git("rev-parse", "HEAD") == head
    assert repository.state()[2] == "A  staged\n M sub/file\n?? sub/a\n?? sub/binary\n"
    assert (repository.sub / "binary").read_bytes() == b"x\0y"
    assert "two" in repository.git("diff")
    assert land(repository, daemon, run, "--patch")["landed"] == "nothing"


KINDS = r"""
printf 'a\0b\377' > binary; ln -s file link; ln -s /nowhere dangling
echo run > script; chmod +x script; chmod +x file
git mv old new; rm gone; mkdir -p deep/er; echo x > deep/er/x
ln -sf other was-file; rm was-link; echo file > was-link
printf 'caf\351' > "$(printf 'n\303\244me with\ttab')"; echo y > "$(printf 'caf\351')"
echo ignored > ignored.log; rm -r directory; echo file > directory; echo e > ' -x'
"""


@pytest.mark.parametrize("how", ["--merge", "--squash", "--patch"])
@pytest.mark.parametrize("moved_on", [False, True])
def test_each_kind_of_file_lands_as_it_is(
    daemon: Daemon, repository: Repository, how: str, moved_on: bool
) -> None:
    for name in ("old", "gone", "was-file"):
        (repository.sub / name).write_text(f"{name}\n" * 9)
    (repository.sub / "was-link").symlink_to("file")
    (repository.sub / "directory").mkdir()
    (repository.sub / "directory" / "x").write_text("x\n")
    (repository.path / ".gitignore").write_text("*.log\n")
    repository.commit("kinds")
    run = repository.run(daemon, KINDS)
    if moved_on:
        (repository.path / "mine").write_text("mine\n")
        repository.commit("mine")
    land(repository, daemon, run, how)
    worktree = Path(run.worktree or "")

    def content(top: Path) -> dict[str, object]:
        return {
            name.removeprefix(str(top)): value[:2]
            for name, value in everything(top).items()
            if isinstance(value, tuple)
            if not name.endswith(("mine", "ignored.log", "/.git"))
        }

    assert content(repository.path) == content(worktree)
    assert not (repository.sub / "ignored.log").exists()
    if how != "--patch":
        assert repository.state()[2] == ""


@pytest.mark.parametrize("how", ["--merge", "--squash", "--patch"])
@pytest.mark.parametrize("moved_on", [False, True])
@pytest.mark.parametrize(
    "in_the_way", ["edited", "staged", "untracked", "ignored", "deleted", "directory"]
)
def test_files_that_the_person_has_not_committed_stop_it_and_are_named(
    daemon: Daemon, repository: Repository, how: str, moved_on: bool, in_the_way: str
) -> None:
    (repository.path / ".gitignore").write_text("ignored\n")
    (repository.sub / "other").write_text("other\n")
    repository.commit("more")
    run = repository.run(
        daemon,
        "echo two > file; echo 2 > other; echo new > untracked; echo new > ignored; "
        "git add -f ignored; echo x > directory",
    )
    if moved_on:
        (repository.path / "mine").write_text("mine\n")
        repository.commit("mine")
    match in_the_way:
        case "edited" | "staged":
            for name in ("file", "other"):
                (repository.sub / name).write_text("edited, not committed\n")
            if in_the_way == "staged":
                repository.git("add", ".")
        case "deleted":
            (repository.sub / "file").unlink()
            (repository.sub / "file").mkdir()
            (repository.sub / "file" / "within").write_text("mine\n")
        case "directory":
            (repository.sub / "directory").mkdir()
            (repository.sub / "directory" / "within").write_text("mine\n")
        case name:
            (repository.sub / name).write_text("mine\n")
    said = refused(repository, daemon, run, how)
    assert "Nothing has changed there" in said
    if in_the_way in ("edited", "staged"):
        assert "sub/file, sub/other" in said
    elif in_the_way in ("untracked", "ignored"):
        assert f"sub/{in_the_way}" in said


@pytest.mark.parametrize("flag", ["assume-unchanged", "skip-worktree"])
def test_files_that_the_person_hides_from_git_stop_it_with_a_way_out(
    daemon: Daemon, repository: Repository, flag: str
) -> None:
    run = repository.run(daemon, "echo two > file")
    repository.git("update-index", f"--{flag}", "sub/file")
    (repository.sub / "file").write_text("mine\n")
    why = refused(repository, daemon, run)
    way = re.search(r"Have git look at what you hide from it \(git (.*?)\) and commit or", why)
    assert way is not None, why
    repository.git(*way[1].split())
    repository.git("stash", "--include-untracked")
    land(repository, daemon, run)
    assert "mine" in repository.git("stash", "show", "-p")


@pytest.mark.parametrize("how", ["--merge", "--squash", "--patch"])
def test_a_conflict_changes_nothing_and_says_how_to_go_on(
    daemon: Daemon, repository: Repository, how: str
) -> None:
    run = repository.run(daemon, "echo two > file; printf 'b\\n' > 'other one'", name="w")
    (repository.sub / "file").write_text("mine\n")
    (repository.sub / "other one").write_text("mine\n")
    repository.commit("mine")
    said = refused(repository, daemon, run, how)
    assert "it conflicts with 'main' in sub/file, sub/other one" in said
    done = sfactl(repository, daemon, "land", run.id, how, "--json")
    assert json.loads(done.stdout)["files"] == ["sub/file", "sub/other one"]
    if how == "--patch":  # nothing is committed in the worktree
        (tip,) = repository.git(
            "for-each-ref", "--format=%(objectname:short=12)", "refs/sfad"
        ).split()
        assert f"To go on: git -C {repository.path} merge {tip}" in said
        return
    worktree = Path(run.worktree or "")
    steps = said.partition("To go on: ")[2]
    assert f"git -C {worktree} merge main" in steps
    subprocess.run(["git", "merge", "main"], cwd=worktree, env=repository.env, check=False)
    assert "its worktree is in the middle of a merge" in refused(repository, daemon, run, how)
    (worktree / "sub" / "file").write_text("both\n")
    (worktree / "sub" / "other one").write_text("both\n")
    repository.git("commit", "-qam", "resolved", cwd=worktree)
    assert land(repository, daemon, run, how)["landed"] == how[2:]
    assert (repository.sub / "file").read_text() == "both\n"


def test_onto_another_branch_touches_no_working_tree(
    daemon: Daemon, repository: Repository
) -> None:
    repository.git("branch", "release")
    run = repository.run(daemon, "echo two > file")
    (repository.sub / "file").write_text("mine, not committed\n")
    before = everything(repository.path)
    told = land(repository, daemon, run, "--onto", "release")
    assert everything(repository.path) == before
    assert repository.git("rev-parse", "release").strip() == told["commit"]
    assert repository.git("show", "release:sub/file") == "two\n"
    assert "checked out nowhere" in refused(repository, daemon, run, "--onto", "release", "--patch")
    assert "no branch 'gone'" in refused(repository, daemon, run, "--onto", "gone")
    assert "no branch '-d'" in refused(repository, daemon, run, "--onto=-d")
    assert "the run worked itself" in refused(repository, daemon, run, "--onto", run.branch or "")
    repository.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
    assert "another name" in refused(repository, daemon, run, "--onto", "alias")


def test_onto_a_branch_that_is_checked_out_elsewhere(
    daemon: Daemon, repository: Repository, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    repository.git("worktree", "add", "-q", str(other), "-b", "release")
    run = repository.run(daemon, "echo two > file")
    (other / "sub" / "file").write_text("mine\n")
    assert "would be overwritten" in refused(repository, daemon, run, "--onto", "release")
    assert (other / "sub" / "file").read_text() == "mine\n"
    repository.git("checkout", ".", cwd=other)
    land(repository, daemon, run, "--onto", "release", cwd=tmp_path)
    assert (other / "sub" / "file").read_text() == "two\n"
    assert repository.git("status", "--porcelain", cwd=other) == ""


def test_where_it_is_typed(daemon: Daemon, repository: Repository, tmp_path: Path) -> None:
    run = repository.run(daemon, "echo two > file")
    elsewhere = Repository(tmp_path / "elsewhere", directory="sub")
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", elsewhere.path):
        why = refused(repository, daemon, run, cwd=place)
        assert "is in no checkout of" in why
        assert f": cd {repository.sub}, or name a branch" in why
    assert "the run worked itself" in refused(
        repository, daemon, run, cwd=Path(run.worktree or "") / "sub"
    )
    repository.git("checkout", "-q", "--detach")
    assert "no branch is checked out" in refused(repository, daemon, run)
    repository.git("checkout", "-q", "main")
    land(repository, daemon, run, cwd=repository.sub)


def test_after_prune_it_says_that_all_may_have_landed(
    daemon: Daemon, repository: Repository
) -> None:
    run = repository.run(daemon, "echo two > file")
    land(repository, daemon, run)
    repository.sfactl(daemon, "prune", "--worktrees")
    said = refused(repository, daemon, run)
    assert "sfactl prune removes all three once everything has landed" in said


def test_a_live_run_and_a_run_in_the_same_worktree_are_refused(
    daemon: Daemon, repository: Repository
) -> None:
    first = repository.run(daemon, "echo two > file")
    with daemon.client() as client:
        second = started(client, ["sleep", "1000"], **repository.options(Worktree(of=first.id)))
        assert f"run {second.id} has not ended" in refused(repository, daemon, second)
        assert f"run {second.id} works in the worktree" in refused(repository, daemon, first)
        other = started(client, ["sleep", "1000"], **repository.options())
        said = refused(repository, daemon, first, "--onto", other.branch or "")
        assert f"run {second.id} works in the worktree" in said
        stopped(client, second.id)
        said = refused(repository, daemon, first, "--onto", other.branch or "")
        assert f"run {other.id} works in {other.worktree}" in said
        stopped(client, other.id)
    land(repository, daemon, first)


def test_a_run_that_a_person_has_started_in_the_worktree_is_waited_for(
    daemon: Daemon, repository: Repository
) -> None:
    run = repository.run(daemon, "echo two > file")
    with daemon.client() as client:
        there = os.fsencode(f"{run.worktree}/sub")
        other = started(client, ["sleep", "300"], cwd=there, env=repository.options()["env"])
        said = refused(repository, daemon, run)
        assert f"run {other.id} works in the worktree of run {run.id}" in said
        stopped(client, other.id)
    assert land(repository, daemon, run)["landed"] == "merge"


def test_a_run_without_a_worktree(daemon: Daemon, repository: Repository) -> None:
    run = repository.run(daemon, "true", None)
    assert "has no worktree of its own" in refused(repository, daemon, run)
    assert sfactl(repository, daemon, "land", "nothing-like-it").returncode == 66
    done = sfactl(repository, daemon, "land", run.id, "--squash", "--patch")
    assert (done.returncode, "exclude each other" in done.stderr) == (2, True)


def test_a_hook_that_refuses_loses_nothing(daemon: Daemon, repository: Repository) -> None:
    hook = repository.path / ".git" / "hooks" / "pre-commit"
    hook.write_text('#!/bin/sh\ntest -e "$HOME/ok" || { echo "no tabs, please" >&2; exit 1; }\n')
    hook.chmod(0o755)
    run = repository.run(daemon, "echo two > file; echo new > new")
    said = refused(repository, daemon, run)
    assert ("no tabs, please" in said, f"sfactl land {run.id}" in said) == (True, True)
    assert (Path(run.worktree or "") / "sub" / "new").read_text() == "new\n"
    (repository.home / "ok").touch()
    land(repository, daemon, run)
    assert (repository.sub / "new").read_text() == "new\n"


def test_a_hook_that_changes_files(daemon: Daemon, repository: Repository) -> None:
    hook = repository.path / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\necho formatted > sub/file; git add sub/file\n")
    hook.chmod(0o755)
    run = repository.run(daemon, "echo two > file")
    land(repository, daemon, run)
    assert (repository.sub / "file").read_text() == "formatted\n"
    assert repository.state()[2] == ""


def test_commits_are_signed_as_the_person_does(
    daemon: Daemon, repository: Repository, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (tmp_path / "signers").write_text(f"n@example.com {(tmp_path / 'key.pub').read_text()}")
    for name, value in (
        ("gpg.format", "ssh"), ("user.signingKey", str(key)), ("commit.gpgSign", "true"),
        ("gpg.ssh.allowedSignersFile", str(tmp_path / "signers")),
    ):  # fmt: skip
        repository.git("config", "--global", name, value)
    run = repository.run(daemon, "echo two > file")
    (repository.path / "mine").write_text("mine\n")
    repository.commit("mine")
    land(repository, daemon, run)
    assert repository.git("log", "-3", "--format=%G?").split() == ["G", "G", "G"]
    key.unlink()
    run = repository.run(daemon, "echo three > file")
    assert "git commit ended with" in refused(repository, daemon, run)


def test_a_person_without_a_name(daemon: Daemon, repository: Repository) -> None:
    run = repository.run(daemon, "echo two > file")
    repository.git("config", "--global", "user.useConfigOnly", "true")
    repository.git("config", "--global", "--unset", "user.email")
    said = refused(repository, daemon, run)
    assert "user.email" in said
    repository.git("config", "--global", "user.email", "n@example.com")
    land(repository, daemon, run)


@pytest.mark.parametrize("value", ["only", "false"])
def test_merge_ff(daemon: Daemon, repository: Repository, value: str) -> None:
    repository.git("config", "--global", "merge.ff", value)
    first, second = (repository.run(daemon, f"echo {n} > {n}") for n in ("a", "b"))
    land(repository, daemon, first)
    parents = repository.git("log", "-1", "--format=%p").split()
    assert len(parents) == (1 if value == "only" else 2)
    if value == "only":
        assert f"git -C {second.worktree} rebase main" in refused(repository, daemon, second)
        repository.git("rebase", "-q", "main", cwd=Path(second.worktree or ""))
    land(repository, daemon, second)
    assert (repository.sub / "b").read_text() == "b\n"


def test_line_endings(daemon: Daemon, repository: Repository) -> None:
    repository.git("config", "--global", "core.autocrlf", "true")
    repository.git("rm", "-q", "--cached", "-r", ".")
    repository.git("reset", "-q", "--hard")
    for how in ("--patch", "--merge"):
        run = repository.run(daemon, f"printf 'a{how}\\r\\nb\\r\\n' > file; printf 'x\\r\\n' > new")
        land(repository, daemon, run, how)
        assert (repository.sub / "file").read_bytes() == f"a{how}\r\nb\r\n".encode()
        assert (repository.sub / "new").read_bytes() == b"x\r\n"
        if how == "--merge":
            assert repository.git("show", "HEAD:sub/file") == f"a{how}\nb\n"
        repository.git("reset", "-q", "--hard")
        repository.git("clean", "-qfd")


@pytest.mark.needs("git-lfs")
@pytest.mark.parametrize("how", ["--merge", "--squash", "--patch"])
def test_lfs(daemon: Daemon, repository: Repository, how: str) -> None:
    repository.git("lfs", "install", "--local")
    repository.git("lfs", "track", "*.bin")
    (repository.sub / "large.bin").write_bytes(b"content\n")
    repository.commit("large")
    run = repository.run(daemon, "printf 'more\\0' > large.bin; printf 'new\\0' > new.bin")
    (repository.path / "mine").write_text("mine\n")
    repository.commit("mine")
    land(repository, daemon, run, how)
    assert (repository.sub / "large.bin").read_bytes() == b"more\0"
    assert (repository.sub / "new.bin").read_bytes() == b"new\0"
    if how != "--patch":
        assert repository.git("show", "HEAD:sub/new.bin").startswith("version https://git-lfs")
        assert repository.state()[2] == ""


def test_submodules(daemon: Daemon, tmp_path: Path) -> None:
    other, repository = (
        Repository(tmp_path / "other", directory="sub"),
        Repository(tmp_path, directory="sub"),
    )
    repository.git("submodule", "add", "-q", str(other.path), "module")
    repository.commit("module")
    script = (
        "cd ..; git submodule update -q --init; cd module; echo two > sub/file; "
        "git -c user.name=n -c user.email=e commit -qam two; echo three > sub/file"
    )
    run = repository.run(daemon, script)
    told = land(repository, daemon, run)
    assert told["files"] == ["module"]
    assert told["notes"][0].startswith("left out: the sub-module module has changes")
    commit = repository.git("rev-parse", "HEAD:module").strip()
    command = told["notes"][1].rpartition("commit: ")[2]
    assert command == f"git -C module fetch {run.worktree}/module {commit}"
    repository.git(*command.split()[1:])
    repository.git("submodule", "update", "-q")
    assert (repository.path / "module" / "sub" / "file").read_text() == "two\n"
    assert land(repository, daemon, run)["landed"] == "nothing"


@pytest.mark.parametrize("how", ["--merge", "--squash", "--patch"])
def test_git_that_fails_in_the_middle_leaves_the_checkout_as_it_was(
    daemon: Daemon, repository: Repository, how: str
) -> None:
    """As on a full disk, or with an object of LFS that is not there."""
    (repository.path / ".gitattributes").write_text("*.slow filter=slow\n")
    (repository.sub / "was-directory").mkdir()
    for name in ("a", "m.slow", "gone", "c", "was-directory/x"):
        (repository.sub / name).write_text("before\n")
    repository.commit("attributes")
    gate = repository.home / "gate"
    repository.git("config", "filter.slow.clean", "cat")
    repository.git("config", "filter.slow.smudge", f"test -e '{gate}' && cat")
    repository.git("config", "filter.slow.required", "true")
    gate.touch()
    script = (
        "for f in a m.slow z b/new; do mkdir -p b; echo after > $f; done; "
        "rm -r gone c was-directory; mkdir c; echo after > c/x; echo after > was-directory"
    )
    run = repository.run(daemon, script)
    gate.unlink()
    (repository.sub / "file").write_text("edited, not committed\n")
    before = everything(repository.path)
    done = sfactl(repository, daemon, "land", run.id, how)
    assert (done.returncode, "git merge fails" in done.stderr) == (1, True), done.stderr
    after = everything(repository.path)
    assert after == before
    gate.touch()
    land(repository, daemon, run, how)
    assert (repository.sub / "m.slow").read_text() == "after\n"
    assert (repository.sub / "file").read_text() == "edited, not committed\n"


PARENT = """
import json, subprocess, sys
def sfactl(*words):
    done = subprocess.run([sys.executable, "-m", "sfactl", *words], capture_output=True, text=True)
    return done.stdout or done.stderr
child = json.loads(sfactl("run", "--json", "--worktree", "--", "sh", "-c", "echo two > file"))
print(sfactl("land", child["id"]), open("file").read())
"""


def test_an_agent_lands_the_work_of_its_child_in_its_own_worktree(
    daemon: Daemon, repository: Repository
) -> None:
    env = [f"{name}={value}".encode() for name, value in (daemon.env | repository.env).items()]
    env.append(b"PYTHONPATH=" + os.fsencode(os.getcwd()))
    with daemon.client() as client:
        parent = started(client, [sys.executable, "-c", PARENT], **repository.options(env=env))
        parent = ended(client, parent.id)
    assert f"landed on '{parent.branch}'" in daemon.output(parent.id)
    assert daemon.output(parent.id).endswith(" two\n\n")
    assert (repository.sub / "file").read_text() == "one\n"
    land(repository, daemon, parent)
    assert (repository.sub / "file").read_text() == "two\n"


def test_a_repository_within_the_worktree_is_left_out_and_named(
    daemon: Daemon, repository: Repository
) -> None:
    script = (
        "git init -q nested; cd nested; echo x > x; git add x; git commit -qm x; cd ..; "
        "git init -q empty; echo two > file"
    )
    run = repository.run(daemon, script)
    told = land(repository, daemon, run)
    assert told["files"] == ["sub/file"]
    assert [note.partition(" is a git")[0] for note in told["notes"]] == [
        "left out: sub/empty/",
        "left out: sub/nested/",
    ]
    said = repository.sfactl(daemon, "prune", "--worktrees")
    assert "no commit can keep all of it: sub/empty/ is a git repository" in said
    assert (Path(run.worktree or "") / "sub" / "nested" / "x").exists()


@pytest.mark.parametrize("isolation", [None, pytest.param(Isolation(), marks=BWRAP)])
@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
@pytest.mark.parametrize("change", ["echo two > file", "chmod +x file"])
def test_work_that_the_index_of_a_run_hides_is_work(
    daemon: Daemon, repository: Repository, flag: str, change: str, isolation: Isolation | None
) -> None:
    """Some agents say so of a config that they change, so that they do not commit it."""
    script = f"git update-index {flag} file; {change}"
    runs = [repository.run(daemon, script, isolation=isolation) for _ in range(2)]
    changes = repository.diff(daemon, runs[0])
    assert ("+two" if "two" in change else "new mode 100755") in changes
    for run in runs:
        assert "1 file changed, not committed" in repository.sfactl(daemon, "why", run.id)
    assert land(repository, daemon, runs[0])["files"] == ["sub/file"]
    repository.git("reset", "-q", "--hard", "HEAD~1")
    assert "kept the changes" in repository.sfactl(daemon, "prune", "--worktrees")
    assert land(repository, daemon, runs[1])["files"] == ["sub/file"]
    assert repository.git("status", "--porcelain") == ""


def test_a_deletion_that_the_index_hides_is_work(daemon: Daemon, repository: Repository) -> None:
    run = repository.run(daemon, "git update-index --assume-unchanged file; rm file")
    assert "deleted file" in repository.diff(daemon, run)
    assert land(repository, daemon, run)["files"] == ["sub/file"]


@pytest.mark.parametrize("isolation", [None, pytest.param(Isolation(), marks=BWRAP)])
@pytest.mark.parametrize("index", ["--no-sparse-index", "--sparse-index"])
def test_work_outside_of_a_sparse_checkout_lands(
    daemon: Daemon, repository: Repository, index: str, isolation: Isolation | None
) -> None:
    (repository.path / "left").mkdir()
    for name in ("out", "other"):
        (repository.path / "left" / name).write_text("x\n")
    repository.commit("more")
    repository.git("sparse-checkout", "set", "--cone", index, "sub")
    script = "echo two > file; mkdir ../left; cd ../left; echo new > new; echo y > out"
    runs = [repository.run(daemon, script, isolation=isolation) for _ in range(2)]
    assert "3 files changed, not committed" in repository.sfactl(daemon, "why", runs[0].id)
    assert repository.diff(daemon, runs[0]).count("\ndiff --git") == 2
    expected = ["left/new", "left/out", "sub/file"]
    assert land(repository, daemon, runs[0])["files"] == expected
    assert repository.git("show", "main:left/other") == "x\n"
    repository.git("reset", "-q", "--hard", "HEAD~1")
    assert "kept the changes" in repository.sfactl(daemon, "prune", "--worktrees")
    assert land(repository, daemon, runs[1])["files"] == expected
    assert repository.git("status", "--porcelain") == ""


def test_nobody_waits_long_for_a_line_about_work(
    daemon: Daemon, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = repository.run(daemon, "mkfifo .gitignore; echo two > file")
    monkeypatch.setattr(commands, "GLANCE", 1.0)
    with daemon.client() as client:
        info = client.call(m.Info(id=0, run=run.id), m.RunReply).run
    for name, value in repository.env.items():
        monkeypatch.setenv(name, value)
    begun = time.monotonic()
    told, _ = work_left(info)
    assert "is not known (git status took longer than 1 s)" in told
    assert time.monotonic() - begun < commands.PATIENCE


COMMIT = "echo o > o; git add o; git commit -qm o"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo s > file; git stash -q", "1 stash (git stash list)"),
        (
            "git checkout -q --detach; echo s > file; git stash -q; echo s > s; "
            "git stash -qu -m x; git checkout -q -",
            "2 stashes (git stash list)",
        ),
        (
            f"git checkout -q -b other; {COMMIT}; git checkout -q -",
            "1 commit on the branch 'other'",
        ),
        (f"git checkout -q --detach; {COMMIT}; git checkout -q -", "1 commit on no branch"),
    ],
)
def test_what_a_run_has_put_aside_is_told_and_stays(
    daemon: Daemon, repository: Repository, script: str, words: str
) -> None:
    (repository.path / "mine").write_text("m\n")
    repository.git("stash", "-q", "--include-untracked")
    run = repository.run(daemon, f"echo two > two; {script}; echo three > three")
    told = repository.sfactl(daemon, "why", run.id)
    assert f" changed, not committed: sfactl land {run.id}; also {words}" in told
    assert words in repository.sfactl(daemon, "summary")
    notes = land(repository, daemon, run)["notes"]
    assert [note for note in notes if words in note], notes
    assert f"{run.id}: it has left {words}" in repository.sfactl(daemon, "why", run.id)
    assert "nothing else of" in repository.sfactl(daemon, "land", run.id, cwd=repository.path)
    if "no branch" in words:  # else it stays without the worktree, too
        assert f"kept the worktree {run.worktree}" in repository.sfactl(daemon, "prune", "--keep=0")
    told = repository.sfactl(daemon, "prune", "--worktrees")
    assert "removed 1 worktree" in told
    place = "other"
    if "no branch" in words:
        place = repository.git("for-each-ref", "--format=%(refname)", "refs/sfad").strip()
        assert f"git merge {place}" in told
    stashes = repository.git("stash", "list").splitlines()
    assert "WIP on main: " in stashes[-1], "the person's own"
    if "stash" in words:
        assert len(stashes) == 1 + int(words[0])
    else:
        assert repository.git("show", f"{place}:sub/o") == "o\n"


def test_a_commit_that_the_run_has_replaced_is_not_put_aside(
    daemon: Daemon, repository: Repository
) -> None:
    run = repository.run(
        daemon,
        f"{COMMIT}; git commit -q --amend -m p; echo a > a; git add a; git commit -qm a; "
        "git rebase -q --force-rebase HEAD~1; git reset -q --hard HEAD~1; "
        "git checkout -q --detach; git checkout -q -; "
        "git stash -q; echo b > file; git stash -q; git stash pop -q",
    )
    told = repository.sfactl(daemon, "why", run.id)
    assert f"1 commit to land and 1 file changed, not committed: sfactl land {run.id}\n" in told
    assert land(repository, daemon, run)["notes"] == []


@BWRAP
def test_what_an_isolated_run_has_put_aside_stays_with_its_worktree(
    daemon: Daemon, repository: Repository
) -> None:
    """The repository gets none of it, so it goes with the worktree."""
    for script, words in (
        (f"git checkout -q -b sfad/other; {COMMIT}; git checkout -q -", "the branch 'sfad/other'"),
        (f"git checkout -q --detach; {COMMIT}; git checkout -q -", " on no branch"),
    ):
        run = repository.run(daemon, script, isolation=Isolation())
        assert words in repository.sfactl(daemon, "why", run.id)
        assert words in land(repository, daemon, run)["notes"][0]
        assert words in repository.sfactl(daemon, "prune", "--worktrees")
        assert os.path.isdir(run.worktree or "")
        assert "removed 1 worktree" in repository.sfactl(daemon, "prune", "--worktrees", "--yes")


def test_a_worktree_that_the_person_has_moved(
    daemon: Daemon, repository: Repository, tmp_path: Path
) -> None:
    run = repository.run(daemon, f"{COMMIT}; echo two > file")
    moved = tmp_path / "moved"
    repository.git("worktree", "move", run.worktree or "", str(moved))
    assert f"was moved to {moved}" in repository.sfactl(daemon, "why", run.id)
    assert f"git -C {moved} diff" in sfactl(repository, daemon, "diff", run.id).stderr
    told = land(repository, daemon, run)
    assert told["files"] == ["sub/o"]
    assert f"was moved to {moved}" in told["notes"][0]
    for _ in range(2):
        repository.sfactl(daemon, "prune", "--worktrees")
    assert (moved / "sub" / "file").read_text() == "two\n"
    assert repository.git("status", "--porcelain", cwd=moved) == " M sub/file\n"


def test_a_branch_that_the_person_has_checked_out_stays(
    daemon: Daemon, repository: Repository
) -> None:
    run = repository.run(daemon, "true")
    repository.git("worktree", "remove", run.worktree or "")
    repository.git("checkout", "-q", run.branch or "")
    repository.sfactl(daemon, "prune", "--worktrees")
    assert repository.git("branch", "--show-current").strip() == run.branch
    assert repository.git("status", "--porcelain") == ""


LOOK = """
import os, sys
from sfad.features.worktrees import landing, worktrees
from sfad.git.commands import GitError
record = worktrees.read_record(sys.argv[1])
print(worktrees.changes(record, os.environ))
try:
    worktrees.keep(record, os.environ, dry_run=False)
except worktrees.NotKept as error:
    print(error)
work = landing.Work(record.run, "sh", record.branch, record.path, record, record.isolated)
try:
    landed = landing.land(work, sys.argv[2], os.environ)
    print(landed.files, landed.notes)
except GitError as error:
    print(error)
"""


@needs_root
@pytest.mark.parametrize("isolation", [None, pytest.param(Isolation(), marks=BWRAP)])
def test_what_git_may_not_read_is_named_and_stays(isolation: Isolation | None) -> None:
    """A user of root's daemon: root itself could look into each directory."""
    codecs.lookup("ascii")  # the other user may not read where Python is installed
    scripts = {
        "new": "mkdir new; echo x > new/x; chmod 000 new; echo two > file",
        "tracked": "chmod 000 tracked; echo three > file",
        "file": "echo x > closed; chmod 000 closed",
    }
    config = '[access]\nusers = "all"\n'
    with open_directory() as top:
        (top / "d").mkdir(mode=0o755)
        with running(top / "d", config=config, wrap=readable_by_all(top)) as daemon:
            place = top / "place"
            place.mkdir()
            os.chown(place, FIRST, FIRST)

            def submit() -> tuple[dict[str, str], list[str]]:
                repository = Repository(place, directory="sub")
                (repository.sub / "tracked").mkdir()
                (repository.sub / "tracked" / "z").write_text("z\n")
                repository.commit("second")
                repository.env["PYTHONPATH"] = f"{top}/code:{top}/site"
                python = str(top / "python" / "bin" / Path(sys.executable).resolve().name)
                found = {}
                for name, script in scripts.items():
                    run = repository.run(daemon, script, isolation=isolation)
                    with daemon.client() as client:
                        words = [python, "-c", LOOK, str(run.worktree), str(repository.path)]
                        look = ended(client, started(client, words, **repository.options(None)).id)
                    found[name] = look.id
                tree = repository.git("ls-tree", "-r", "--name-only", "HEAD")
                return found, tree.split()

            looks, tree = as_user(FIRST, submit)
            found = {
                name: daemon.output(look) + daemon.errors(look) for name, look in looks.items()
            }
    assert tree == ["sub/file", "sub/tracked/z"]
    for name, said in found.items():
        changes, kept, landed, *_ = said.splitlines()
        assert changes != "None", said
        assert "may not be read" in kept or (name == "file" and "denied" in kept), said
        assert kept.startswith("no commit can keep"), said
        if isolation is None and name != "file":
            assert landed.startswith("['sub/file'] ['left out: "), said
        else:
            assert landed.rpartition(": ")[2].startswith(("Permission denied", "chmod -R u+")), said


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("git checkout -q -b other; echo o > o; git add o; git commit -qm o", None),
        ("git checkout -q --detach; echo o > o; git add o; git commit -qm o; echo p > p", None),
        ("echo a > a; git add a; git commit -qm a; git checkout -q HEAD~1", None),
        (
            "echo a > a; git add a; git commit -qm a; git checkout -q HEAD~1; echo o > o",
            "lacks commits",
        ),
        ("echo a > a; git add a; git commit -qm a; git cherry-pick HEAD~1", "middle of a cherry"),
        (
            "echo a > file; git commit -qam a; git checkout -q -b another HEAD~1; echo b > file; "
            "git commit -qam b; git rebase -q @{-1}",
            "middle of a rebase",
        ),
    ],
)
def test_where_the_run_has_left_its_worktree(
    daemon: Daemon, repository: Repository, script: str, why: str | None
) -> None:
    run = repository.run(daemon, f"{script} || true", name="x")
    if why is not None:
        assert why in refused(repository, daemon, run)
        return
    land(repository, daemon, run)
    landed = "a" if " a;" in script else "o"
    assert (repository.sub / landed).exists()
    assert repository.git("status", "--porcelain", cwd=Path(run.worktree or "")) == ""


def test_two_at_once_land_once(daemon: Daemon, repository: Repository) -> None:
    runs = [repository.run(daemon, f"echo {n} > {n}") for n in ("a", "b", "c")]
    with ThreadPoolExecutor(6) as threads:
        told = list(threads.map(lambda run: land(repository, daemon, run), [*runs, *runs]))
    assert sorted(each["landed"] for each in told) == ["merge"] * 3 + ["nothing"] * 3
    assert repository.state()[2] == ""
    assert [(repository.sub / n).read_text() for n in "abc"] == ["a\n", "b\n", "c\n"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_lands_in_each_layout(
    daemon: Daemon, tmp_path: Path, layout: Callable[[Path], Made]
) -> None:
    repository, checkout = layout(tmp_path)
    if repository.git("branch", "--show-current", cwd=checkout) == "\n":
        repository.git("checkout", "-q", "-b", "mine", cwd=checkout)
    for how in ("--patch", "--merge"):
        run = repository.run(
            daemon, "echo two > sub/file; echo new > sub/new", cwd=os.fsencode(checkout)
        )
        land(repository, daemon, run, how, cwd=checkout)
        assert (checkout / "sub" / "file").read_text() == "two\n"
        assert (checkout / "sub" / "new").read_text() == "new\n"
        expected = "" if how == "--merge" else " M sub/file\n?? sub/new\n"
        assert repository.git("status", "--porcelain", cwd=checkout) == expected
        repository.git("reset", "-q", "--hard", cwd=checkout)
        repository.git("clean", "-qfd", cwd=checkout)


# ---- From a full-screen view and a browser


def test_it_lands_from_top(start: Start, repository: Repository) -> None:
    daemon = start()
    run = repository.run(daemon, "echo two > file", name="lander")
    (repository.sub / "file").write_text("mine\n")
    with top(daemon.env | repository.env) as terminal:
        terminal.until(lambda: "completed" in terminal.line_of("lander"))
        terminal.press("m")
        terminal.until(rf"commit the work of {run.id} \(lander\), and merge it .*y/N")
        terminal.press("y")
        terminal.until("(?s)would be.*overwritten")
        assert (repository.sub / "file").read_text() == "mine\n"
        repository.git("checkout", "-q", ".")
        terminal.press("my")
        terminal.until(rf"{run.id} landed on 'main'")
    assert (repository.sub / "file").read_text() == "two\n"


def test_it_lands_from_the_console(daemon: Daemon, repository: Repository) -> None:
    run = repository.run(daemon, "echo two > file")
    (repository.sub / "file").write_text("mine\n")
    console = Console(daemon, env=repository.env)
    console.open()
    try:
        shown = json.loads(console.ask(f"/api/runs/{run.id}")[2])
        assert "land" in shown["row"]["verbs"]
        assert ["work", f"1 file changed, not committed: sfactl land {run.id}"] in shown["facts"]
        headers = {"x-csrf-token": console.token(), "Origin": console.origin}
        path = f"/api/runs/{run.id}/land"
        _, _, said = console.ask(path, "POST", "{}", headers)
        assert "would be overwritten" in said
        repository.git("checkout", "-q", ".")
        status, _, said = console.ask(path, "POST", "{}", headers)
        assert (status, f"{run.id} landed on 'main'" in said) == (200, True)
    finally:
        assert console.end() == 0
    assert (repository.sub / "file").read_text() == "two\n"


# ---- What the end of a run says


@pytest.mark.parametrize(
    ("script", "commits"),
    [
        ("git switch -qc own; {commit}", 1),
        ("{commit}; git switch -qc own; {commit}", 2),
        ("{commit}; git branch -m own; {commit}", 2),
        ("git switch -q topic; {commit}", 1),
        ("git switch -qc own topic; {commit}", 1),
        ("git switch -q topic; git switch -q -; {commit}", 1),
        ("git switch -qc own", 0),
        ("git switch -q topic", 0),
    ],
)
def test_commits_on_a_branch_that_the_agent_has_chosen_are_told(
    daemon: Daemon, repository: Repository, script: str, commits: int
) -> None:
    repository.git("switch", "-qc", "topic")
    repository.git("commit", "-q", "--allow-empty", "-m", "of the person")
    repository.git("switch", "-q", "main")
    commit = "echo more >> file; git commit -qam more"
    run = repository.run(daemon, script.format(commit=commit))
    assert run.exit_code == 0, daemon.errors(run.id)
    told = f"{commits} commit{'s' * (commits > 1)} to land: sfactl land {run.id}"
    assert told_of(repository, daemon, run) == (told if commits else "")
    land(repository, daemon, run)
    assert told_of(repository, daemon, run) == ""
    text = (repository.sub / "file").read_text()
    assert text == "one\n" + "more\n" * commits


def test_the_end_of_a_run_says_what_is_there(daemon: Daemon, repository: Repository) -> None:
    script = "echo a > a; git add a; git commit -qm a; echo b > b; echo c > c; git add c"
    words = ["run", "--worktree", "--name", "w", "--", "sh", "-ec", script]
    done = sfactl(repository, daemon, *words)
    run = json.loads(sfactl(repository, daemon, "info", "w", "--json").stdout)
    line = f"1 commit to land and 2 files changed, not committed: sfactl land {run['id']}"
    assert done.stderr.endswith(f"[agent:w] {line}\n")
    assert f"\n{run['id']}: {line}\n" in sfactl(repository, daemon, "why", "w").stdout
    assert f"work         {line}\n" in sfactl(repository, daemon, "info", "w").stdout
    assert line in sfactl(repository, daemon, "wait", "w").stderr
    for verb in ("why", "info"):
        told = json.loads(sfactl(repository, daemon, verb, "w", "--json").stdout)
        assert told["unlanded"] == {"files": 2, "commits": 1}
    sfactl(repository, daemon, "land", "w")
    for verb in ("why", "info", "wait"):
        told_now = sfactl(repository, daemon, verb, "w")
        assert "sfactl land" not in told_now.stdout + told_now.stderr
    assert "sfactl land" not in sfactl(repository, daemon, "run", "--worktree", "true").stderr


def test_the_summary_begins_with_work_to_land(start: Start, repository: Repository) -> None:
    daemon = start(config="[quotas]\nspawns_per_hour = 1000\n")
    runs = [repository.run(daemon, f"echo {n} > {n}; echo x > x", name="w") for n in range(7)]
    repository.run(daemon, "true")
    ids = [run.id for run in reversed(runs)]
    waits = json.loads(sfactl(repository, daemon, "summary", "--json").stdout)["waiting"]
    assert [(each["what"], each["runs"], each["command"]) for each in waits] == [
        *(("unlanded", [run], f"sfactl land {run}") for run in ids[:5]),
        ("unlanded", ids[5:], f"sfactl why {ids[5]} {ids[6]}"),
    ]
    lines = sfactl(repository, daemon, "summary").stdout.splitlines()
    line = f"  {ids[0]} (w) has ended: 2 files changed, not committed: sfactl land {ids[0]}"
    assert lines[:2] == ["waiting for you", line]
    assert lines[6] == f"  2 more ended runs have work to land: sfactl why {ids[5]} {ids[6]}"
    for run in runs:
        land(repository, daemon, run, "--onto", "main") if run is runs[6] else None
    waits = json.loads(sfactl(repository, daemon, "summary", "--json").stdout)["waiting"]
    assert waits[0]["runs"] == [ids[1]], "the newest has landed"
    assert "land" not in sfactl(repository, daemon, "summary", "--name", "other").stdout
    daemon.stop()
    env = {name: value for name, value in daemon.env.items() if name != "SFA_SOCKET"}
    done = subprocess.run(
        [sys.executable, "-m", "sfactl", "summary"],
        env=env | repository.env | {"SFAD_STATE_DIR": str(daemon.state_dir)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"sfactl land {ids[1]}" in done.stdout


def test_the_summary_looks_at_a_bounded_number_of_worktrees(
    start: Start, repository: Repository
) -> None:
    daemon = start(config="[quotas]\nspawns_per_hour = 1000\n")
    runs = [repository.run(daemon, "true").id for _ in range(22)]
    (wait,) = json.loads(sfactl(repository, daemon, "summary", "--json").stdout)["waiting"]
    assert (wait["what"], wait["runs"]) == ("unlanded", [runs[1], runs[0]])
    assert "not looked at" in wait["message"]


# ---- What has landed is remembered


def told_of(repository: Repository, daemon: Daemon, run: RunInfo) -> str:
    """Return what the verbs say of work to land, which is the same everywhere."""
    said = [sfactl(repository, daemon, verb, run.id) for verb in ("why", "info", "wait")]
    found = {
        line.removeprefix("work").strip().removeprefix(f"{run.id}: ")
        for done in said
        for line in (done.stdout + done.stderr).splitlines()
        if "sfactl land" in line
    }
    assert len(found) <= 1, found
    return next(iter(found), "")


SCRIPT = "echo a > a; git add a; git commit -qm a; echo b > b; git add b; git commit -qm b; "


@pytest.mark.parametrize("uncommitted", ["", "echo c > c; echo two > file"])
def test_what_was_squashed_has_landed(
    daemon: Daemon, repository: Repository, uncommitted: str
) -> None:
    run = repository.run(daemon, SCRIPT + uncommitted)
    assert "2 commits" in told_of(repository, daemon, run)
    land(repository, daemon, run, "--squash")
    assert told_of(repository, daemon, run) == ""
    for name in "ab":  # where the work conflicts with what came of it
        (repository.sub / name).write_text("more\n")
    repository.commit("more")
    for how in ("--merge", "--squash", "--patch"):
        assert land(repository, daemon, run, how)["landed"] == "nothing"
    (Path(run.worktree or "") / "sub" / "new").write_text("new\n")
    assert "1 file changed, not committed" in told_of(repository, daemon, run)
    repository.git("reset", "-q", "--hard", f"{repository.git('rev-parse', 'HEAD~2').strip()}")
    assert "2 commits" in told_of(repository, daemon, run) or uncommitted
    assert land(repository, daemon, run)["landed"] == "merge", "the branch has lost it"
    assert (repository.sub / "a").read_text() == "a\n"


def test_what_was_squashed_into_one_branch_lands_on_another(
    daemon: Daemon, repository: Repository
) -> None:
    repository.git("branch", "release")
    run = repository.run(daemon, SCRIPT)
    for branch in ("release", "main"):
        assert land(repository, daemon, run, "--squash", "--onto", branch)["landed"] == "squash"
        assert land(repository, daemon, run, "--onto", branch)["landed"] == "nothing"
        assert told_of(repository, daemon, run) == ""
    with daemon.client() as client:
        words = ["sh", "-ec", "echo d > d; git add d; git commit -qm d"]
        more = started(client, words, **repository.options(Worktree(of=run.id)))
        more = ended(client, more.id)
    assert told_of(repository, daemon, more) == f"1 commit to land: sfactl land {more.id}"
    land(repository, daemon, more, "--squash")
    assert (repository.sub / "d").read_text() == "d\n"


@pytest.mark.parametrize(
    "isolation", [None, pytest.param(Isolation(), marks=pytest.mark.needs("bwrap"))]
)
def test_a_patch_that_was_committed_has_landed(
    daemon: Daemon, repository: Repository, isolation: Isolation | None
) -> None:
    script = SCRIPT + "echo two > file; rm ../gone"
    (repository.path / "gone").write_text("gone\n")
    repository.commit("more")
    run = repository.run(daemon, script, isolation=isolation)
    assert land(repository, daemon, run, "--patch")["landed"] == "patch"
    assert told_of(repository, daemon, run) == ""
    before = everything(repository.path)
    assert land(repository, daemon, run, "--patch")["landed"] == "nothing", "it is there"
    assert everything(repository.path) == before
    repository.commit("taken")
    assert told_of(repository, daemon, run) == ""
    for name in ("a", "file"):
        (repository.sub / name).write_text("more\n")
    repository.commit("more")
    for how in ("--patch", "--squash", "--merge"):
        assert land(repository, daemon, run, how)["landed"] == "nothing"


def test_a_patch_that_was_dropped_or_edited_is_not_there(
    daemon: Daemon, repository: Repository
) -> None:
    (repository.path / "gone").write_text("gone\n")
    repository.commit("more")
    run = repository.run(daemon, "echo two > file; echo x > new; rm ../gone; chmod +x new")
    land(repository, daemon, run, "--patch")
    (repository.sub / "new").chmod(0o644)
    assert "sub/new" in refused(repository, daemon, run, "--patch")
    (repository.sub / "new").unlink()
    repository.git("checkout", "-q", ".")
    assert land(repository, daemon, run, "--patch")["landed"] == "patch"
    assert not (repository.path / "gone").exists()
    (repository.path / "gone").write_text("gone\n")
    assert "would be overwritten" in refused(repository, daemon, run, "--patch")


def test_a_renamed_file_counts_once(daemon: Daemon, repository: Repository) -> None:
    (repository.sub / "old").write_text("line\n" * 50)
    repository.commit("old")
    run = repository.run(daemon, "mv old new; echo two > file")
    assert "2 files changed, not" in told_of(repository, daemon, run)
    done = sfactl(repository, daemon, "land", run.id)
    assert done.stdout.endswith(": 2 files changed\n")
    assert " 2 files changed" in repository.git("diff", "--stat", "HEAD~1")


# ---- What is in the way


def test_a_file_in_the_way_and_the_way_out(daemon: Daemon, repository: Repository) -> None:
    (repository.path / ".gitignore").write_text("*.log\n")
    repository.commit("ignore")
    run = repository.run(daemon, "echo x > my.log; git add -f my.log; echo two > file")
    (repository.sub / "my.log").write_text("mine\n")
    said = refused(repository, daemon, run)
    assert "sub/my.log in" in said
    assert "is ignored by git" in said
    assert "Move or remove it" in said
    assert ("stash" in said, "changes" in said.replace("has changed", "")) == (False, False)
    (repository.sub / "file").write_text("mine\n")
    (repository.sub / "my.log").unlink()
    said = refused(repository, daemon, run)
    assert ("git stash pop" in said, "--onto" in said, "ignored" in said) == (True, True, False)
    repository.git("stash", "--include-untracked")
    land(repository, daemon, run)


def test_words_of_a_merge_under_way(daemon: Daemon, repository: Repository) -> None:
    run = repository.run(daemon, "echo two > file")
    repository.git("checkout", "-qb", "other")
    (repository.sub / "mine").write_text("other\n")
    repository.commit("other")
    repository.git("checkout", "-q", "main")
    (repository.sub / "mine").write_text("main\n")
    repository.commit("main")
    subprocess.run(["git", "merge", "-q", "other"], cwd=repository.path, env=repository.env)
    said = refused(repository, daemon, run)
    assert ("git merge fails" in said, ".." in said.replace("/..", "")) == (True, False), said


# ---- After its worktree is gone


@pytest.mark.parametrize(
    "isolation", [None, pytest.param(Isolation(), marks=pytest.mark.needs("bwrap"))]
)
def test_kept_work_is_told_until_it_lands(
    daemon: Daemon, repository: Repository, isolation: Isolation | None
) -> None:
    run = repository.run(daemon, SCRIPT + "echo c > c", isolation=isolation)
    ref = f"refs/sfad/{os.path.basename(run.worktree or '')}"
    repository.sfactl(daemon, "prune", "--worktrees")
    assert not os.path.exists(run.worktree or "")
    line = f"3 commits to land, kept as {ref}: sfactl land {run.id}"
    assert told_of(repository, daemon, run) == line
    told = json.loads(sfactl(repository, daemon, "why", run.id, "--json").stdout)
    assert told["unlanded"] == {"files": 0, "commits": 3, "kept": ref}
    done = sfactl(repository, daemon, "diff", run.id)
    assert (done.returncode, line in done.stderr) == (1, True), done.stderr
    assert repository.sfactl(daemon, "prune", "--worktrees") == "", "it was told"
    assert told_of(repository, daemon, run) == line
    land(repository, daemon, run, "--squash")
    assert (repository.sub / "c").read_text() == "c\n"
    assert told_of(repository, daemon, run) == ""
    assert land(repository, daemon, run)["landed"] == "nothing"


def test_while_the_repository_is_elsewhere_no_work_is_forgotten(
    daemon: Daemon, repository: Repository
) -> None:
    kept = repository.run(daemon, "echo kept > kept")
    repository.sfactl(daemon, "prune", "--worktrees")
    left = repository.run(daemon, "echo left > left")
    elsewhere = repository.path.rename(repository.path.with_name("elsewhere"))
    gone = f"its repository {repository.path}/.git is gone: move it back"
    said = repository.sfactl(daemon, "why", left.id)
    assert f"what it has left in {left.worktree} is not known ({gone})" in said
    assert gone in sfactl(repository, daemon, "diff", left.id, cwd=elsewhere).stderr
    said = sfactl(repository, daemon, "land", left.id, cwd=elsewhere).stderr
    assert (
        f"is gone, to which the worktree belonged: move it back, then: sfactl land {left.id}"
        in (said)
    )
    repository.sfactl(daemon, "prune", "--worktrees")
    elsewhere.rename(repository.path)
    assert "1 commit to land, kept as" in told_of(repository, daemon, kept)
    for run, name in ((kept, "kept"), (left, "left")):
        land(repository, daemon, run)
        assert (repository.sub / name).read_text() == f"{name}\n"


@pytest.mark.parametrize(
    "isolation", [None, pytest.param(Isolation(), marks=pytest.mark.needs("bwrap"))]
)
def test_a_worktree_with_kept_work_is_made_again(
    daemon: Daemon, repository: Repository, isolation: Isolation | None
) -> None:
    run = repository.run(
        daemon, "test ! -e c || echo found; echo more >> c; cat c", isolation=isolation
    )
    repository.sfactl(daemon, "prune", "--worktrees")
    with daemon.client() as client:
        again = ended(client, repository.sfactl(daemon, "rerun", run.id).split()[0])
    assert daemon.output(again.id) == "found\nmore\nmore\n"
    assert told_of(repository, daemon, run) == "", "another run has worked there since"
    line = f"1 commit to land and 1 file changed, not committed: sfactl land {again.id}"
    assert told_of(repository, daemon, again) == line
    land(repository, daemon, again)
    assert (repository.sub / "c").read_text() == "more\nmore\n"
    repository.sfactl(daemon, "prune", "--worktrees")
    assert repository.git("for-each-ref", "refs/sfad") == ""


def test_a_commit_that_is_left_on_the_branch_is_told_and_tidied_once_it_landed(
    daemon: Daemon, repository: Repository
) -> None:
    before = repository.state()
    run = repository.run(daemon, SCRIPT + "echo c > c")
    repository.sfactl(daemon, "prune", "--worktrees")
    land(repository, daemon, run)
    assert repository.git("for-each-ref", "refs/sfad") != ""
    repository.sfactl(daemon, "prune", "--worktrees")
    assert repository.git("for-each-ref", "refs/sfad") == ""
    assert repository.state()[1] == before[1]
    assert repository.state()[3:] == before[3:]


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("how", ["--merge", "--squash"])
def test_nothing_is_kept_of_an_isolated_run_that_has_landed(
    daemon: Daemon, repository: Repository, how: str
) -> None:
    run = repository.run(daemon, "echo two > file", isolation=Isolation())
    land(repository, daemon, run, how)
    assert told_of(repository, daemon, run) == ""
    said = repository.sfactl(daemon, "prune", "--worktrees")
    assert ("removed 1 worktree" in said, "kept" in said) == (True, False), said
    assert repository.git("for-each-ref", "refs/sfad") == ""
    assert (repository.sub / "file").read_text() == "two\n"


# ---- What an isolated run has written is not obeyed


@pytest.mark.needs("bwrap")
def test_of_an_isolated_run_no_hook_and_no_config_is_obeyed(
    daemon: Daemon, repository: Repository, tmp_path: Path
) -> None:
    repository.git("config", "core.hooksPath", ".husky")
    repository.git("config", "extensions.worktreeConfig", "true")
    mark = tmp_path / "executed"
    (repository.path / ".husky").mkdir()
    (repository.path / ".husky" / "pre-commit").write_text("#!/bin/sh\ntrue\n")
    (repository.path / ".husky" / "pre-commit").chmod(0o755)
    repository.commit("hooks")
    hook = f"#!/bin/sh\ntouch {mark}\n"
    script = f"""
cd ..; for name in pre-commit commit-msg post-commit post-merge post-checkout; do
printf '{hook}' > .husky/$name; chmod +x .husky/$name; done
printf '[core]\\n\\tfsmonitor = touch {mark}\\n\\thooksPath = .\\n' \\
  > "$(git rev-parse --git-dir)/config.worktree"
echo two > sub/file
"""
    env = [*repository.options()["env"]]
    run = repository.run(daemon, script, isolation=Isolation(), env=env)
    told = land(repository, daemon, run)
    assert not mark.exists()
    assert (repository.sub / "file").read_text() == "two\n"
    assert (told["landed"], told["committed"]) == ("merge", told["commit"])
    assert land(repository, daemon, run)["landed"] == "nothing"


@pytest.fixture
def scripts(repository: Repository) -> Path:
    """A tracked program of the checkout, as hooks and filters name it."""
    place = repository.path / "scripts"
    place.mkdir()
    (place / "tool").write_text('#!/bin/sh\ncase "$0" in *hooks*) ;; *) cat ;; esac\n')
    (place / "tool").chmod(0o755)
    repository.commit("scripts")
    return place


HOOKS = ("post-merge", "post-checkout", "post-index-change", "reference-transaction", "post-commit")


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("how", ["here", "--merge", "--squash", "--patch", "called"])
@pytest.mark.usefixtures("scripts")
def test_a_hook_that_is_a_file_of_the_checkout_is_not_executed_by_its_landing(
    daemon: Daemon, repository: Repository, tmp_path: Path, how: str
) -> None:
    mark = tmp_path / "executed"
    for name in HOOKS:
        hook = repository.path / ".git" / "hooks" / name
        if how == "called":
            hook.write_text("#!/bin/sh\nexec scripts/tool < /dev/null\n")
            hook.chmod(0o755)
        else:
            hook.symlink_to("../../scripts/tool")
    script = f"echo 'touch {mark}' >> ../scripts/tool; echo two > file"
    run = repository.run(daemon, script, isolation=Isolation())
    if how == "--merge":
        (repository.path / "mine").write_text("mine\n")
        repository.commit("mine")
    told = land(repository, daemon, run, *([how] if how.startswith("--") else []))
    assert (repository.sub / "file").read_text() == "two\n"
    assert not mark.exists()
    (said,) = (note for note in told["notes"] if "hooks of this repository" in note)
    assert "were not executed: the run was isolated" in said
    assert all(name in said for name in HOOKS)
    if how == "here":
        trusted = repository.run(daemon, "echo three > file")
        assert land(repository, daemon, trusted)["notes"] == []
        assert mark.exists(), "of a run without isolation, hooks are executed"


COMMANDS = (
    "scripts/tool", "./scripts/tool %f", "sh scripts/tool", "sh -c 'exec scripts/tool %f'",
    "TOP/scripts/tool", "TOP/sub/../scripts/tool", "$(git rev-parse --show-toplevel)/scripts/tool",
    "~/../repository/scripts/tool", "HOME/link", "scripts/new || cat", "env A=scripts/tool cat",
)  # fmt: skip


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_program_of_the_config_in_the_checkout_is_not_executed_by_its_landing(
    daemon: Daemon, repository: Repository, scripts: Path, tmp_path: Path, command: str
) -> None:
    (repository.home / "link").symlink_to(scripts / "tool")
    places = {"TOP": str(repository.path), "HOME": str(repository.home)}
    for name, path in places.items():
        command = command.replace(name, path)
    repository.git("config", "--global", "filter.f.smudge", command)
    mark = tmp_path / "executed"
    script = f"""
cd ..; echo '*.txt filter=f' > .gitattributes; echo x > x.txt
echo 'touch {mark}' >> scripts/tool; cp scripts/tool scripts/new
"""
    run = repository.run(daemon, script, isolation=Isolation())
    said = refused(repository, daemon, run)
    assert not mark.exists()
    assert "filter.f.smudge" in said
    assert "Move it out of the checkout" in said
    repository.git("branch", "other")
    assert land(repository, daemon, run, "--onto", "other")["landed"] == "merge"
    repository.git("config", "--global", "filter.f.smudge", f"cat; : {repository.home}")
    land(repository, daemon, run)
    assert not mark.exists()


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    "key",
    ["merge.m.driver", "diff.d.textconv", "core.fsmonitor", "gpg.program", "gpg.ssh.program",
     "core.editor", "filter.f.process"],
)  # fmt: skip
@pytest.mark.usefixtures("scripts")
def test_each_key_of_a_program_counts(daemon: Daemon, repository: Repository, key: str) -> None:
    run = repository.run(daemon, "echo two > file", isolation=Isolation())
    repository.git("config", key, "scripts/tool")
    done = sfactl(repository, daemon, "land", run.id)
    assert done.returncode == 1
    assert f"{key} = scripts/tool" in done.stderr


@pytest.mark.needs("bwrap")
def test_a_file_of_the_config_that_would_land_is_not_obeyed(
    daemon: Daemon, repository: Repository
) -> None:
    repository.git("config", "include.path", "../.gitconfig")
    run = repository.run(daemon, "echo two > file", isolation=Isolation())
    land(repository, daemon, run)
    script = "printf '[core]\\n\\tpager = x\\n' > ../.gitconfig"
    run = repository.run(daemon, script, isolation=Isolation())
    assert "your git config includes" in refused(repository, daemon, run)


@pytest.mark.needs("bwrap")
def test_a_new_program_in_a_directory_of_the_path_is_not_executed(
    daemon: Daemon, repository: Repository, scripts: Path, tmp_path: Path
) -> None:
    """As `.venv/bin` or `node_modules/.bin` are while a person works in the checkout."""
    repository.git("config", "filter.f.smudge", "tr a b")
    mark = tmp_path / "executed"
    script = f"""
cd ..; echo '*.txt filter=f' > .gitattributes; echo a > x.txt
printf '#!/bin/sh\\ntouch {mark}\\n' > scripts/tr; chmod +x scripts/tr
"""
    run = repository.run(daemon, script, isolation=Isolation())
    repository.env["PATH"] = f"{scripts}:{repository.env['PATH']}"
    land(repository, daemon, run)
    assert (repository.path / "x.txt").read_text() == "b\n"
    assert not mark.exists()


ODD = "x;id>INJECTED;#"


def test_commands_that_are_printed_can_be_typed(daemon: Daemon, repository: Repository) -> None:
    repository.git("switch", "-qc", ODD)
    run = repository.run(daemon, "echo two > file")
    (repository.sub / "file").write_text("three\n")
    repository.commit("three")
    assert f"merge '{ODD}', resolve" in refused(repository, daemon, run)
    repository.git("config", "merge.ff", "only")
    script = f"git init -q '{ODD}'; cd '{ODD}'; git commit -q --allow-empty -m n; cd ..; git add ."
    moved = repository.run(daemon, f"{script}; git commit -qm nested")
    (repository.path / "mine").write_text("mine\n")
    repository.commit("mine")
    assert f"rebase '{ODD}', then" in refused(repository, daemon, moved)
    notes = land(repository, daemon, moved, "--merge")["notes"]
    assert [note for note in notes if f"git -C 'sub/{ODD}' fetch '{moved.worktree}" in note]


@pytest.mark.needs("bwrap")
def test_of_an_isolated_run_no_command_is_to_be_typed_in_its_worktree(
    daemon: Daemon, repository: Repository
) -> None:
    script = """
git commit -q --allow-empty -m a; git checkout -q --detach HEAD~1; echo two > file
git commit -qam b
"""
    run = repository.run(daemon, script, isolation=Isolation())
    said = refused(repository, daemon, run)
    assert f"sfactl continue {run.id}" in said
    assert "git -C" not in said
    run = repository.run(daemon, "echo two > file", isolation=Isolation())
    (repository.sub / "file").write_text("three\n")
    repository.commit("three")
    said = refused(repository, daemon, run)
    assert f"git -C {repository.path} merge " in said
    assert f"git -C {run.worktree}" not in said
    repository.git("merge", "--no-edit", "-Xtheirs", said.partition(" merge ")[2].split(",")[0])
    assert (repository.sub / "file").read_text() == "two\n"
    assert land(repository, daemon, run)["landed"] == "nothing"


@pytest.mark.needs("bwrap")
def test_of_an_isolated_run_no_other_branch_moves(daemon: Daemon, repository: Repository) -> None:
    head = repository.git("rev-parse", "main")
    repository.git("branch", "release")
    script = 'echo "ref: refs/heads/main" > "$(git rev-parse --git-dir)/HEAD"; echo two > file'
    run = repository.run(daemon, script, isolation=Isolation())
    land(repository, daemon, run, "--onto", "release")
    assert repository.git("rev-parse", "main") == head
    assert repository.git("show", "release:sub/file") == "two\n"


def test_a_branch_that_was_made_another_name_is_refused(
    daemon: Daemon, repository: Repository
) -> None:
    run = repository.run(daemon, "echo two > file")
    repository.git("symbolic-ref", f"refs/heads/{run.branch}", "refs/heads/main")
    assert "was made another name of refs/heads/main" in refused(repository, daemon, run)


# ---- Other users


@needs_root
def test_root_lands_as_the_user_of_the_run() -> None:
    config = '[access]\nusers = "all"\n'
    with open_directory() as top:
        (top / "d").mkdir(mode=0o755)
        with running(top / "d", config=config, wrap=readable_by_all(top)) as daemon:
            place = top / "place"
            place.mkdir()
            os.chown(place, FIRST, FIRST)

            def submit() -> tuple[Repository, RunInfo]:
                repository = Repository(place, directory="sub")
                # root does not know the home of a user without a name
                repository.git("config", "user.name", "n")
                repository.git("config", "user.email", "n@example.com")
                return repository, repository.run(daemon, "echo two > file")

            repository, run = as_user(FIRST, submit)
            told = land(repository, daemon, run)
            assert told["landed"] == "merge"
            for at, _, files in os.walk(repository.path):
                assert {os.stat(f"{at}/{name}").st_uid for name in files} <= {FIRST}


def test_it_lands_while_no_daemon_runs(start: Start, repository: Repository) -> None:
    daemon = start()
    run = repository.run(daemon, "echo two > file", name="w")
    without = repository.run(daemon, "true", None)
    daemon.stop()
    repository.env |= {"SFAD_STATE_DIR": str(daemon.state_dir)}
    env = {name: value for name, value in daemon.env.items() if name != "SFA_SOCKET"}
    for name, code in ((without.id, 1), ("w", 0)):
        done = subprocess.run(
            [sys.executable, "-m", "sfactl", "land", name],
            env=env | repository.env,
            cwd=repository.path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
    assert f"{run.id} landed on 'main'" in done.stdout


def test_without_a_daemon_nobody_is_told_to_wait_for_a_run_that_may_have_ended(
    start: Start, repository: Repository
) -> None:
    daemon = start()
    with daemon.client() as client:
        run = started(client, ["sleep", "300"], **repository.options())
    daemon.kill()
    env = {name: value for name, value in daemon.env.items() if name != "SFA_SOCKET"}
    done = subprocess.run(
        [sys.executable, "-m", "sfactl", "land", run.id],
        env=env | repository.env | {"SFAD_STATE_DIR": str(daemon.state_dir)},
        cwd=repository.path,
        capture_output=True,
        text=True,
        check=False,
    )
    daemon.restart()
    assert done.returncode == 1
    assert f"whether run {run.id} has ended is not known" in done.stderr
    assert f"start one (sfad serve), then: sfactl land {run.id}" in done.stderr


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("how", [None, "--patch"])
def test_a_monitor_that_is_behind_does_not_let_an_isolated_run_land_over_edits(
    daemon: Daemon, repository: Repository, how: str | None
) -> None:
    """No monitor of files is asked for what an isolated run lands, the person's neither."""
    run = repository.run(daemon, "echo two > file", isolation=Isolation())
    monitor = repository.path / ".git" / "hooks" / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {repository.path}/.git/asked\nprintf 'token\\0'\n")
    monitor.chmod(0o755)
    repository.git("config", "core.fsmonitor", str(monitor))
    repository.git("update-index", "--fsmonitor")
    repository.git("status", "--short")
    (repository.path / ".git" / "asked").unlink()
    (repository.sub / "file").write_text("edited, not committed\n")
    done = sfactl(repository, daemon, "land", run.id, *filter(None, [how]))
    assert done.returncode == 1, done.stdout + done.stderr
    assert (repository.sub / "file").read_text() == "edited, not committed\n"
    assert not (repository.path / ".git" / "asked").exists()
