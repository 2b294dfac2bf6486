"""What an isolated run leaves in its worktree, and what sfad and its user do there afterwards."""

from __future__ import annotations

import codecs
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sfad.features.worktrees import private, worktrees
from sfad.git import commands as git_runs
from sfad.git.commands import GitError
from sfad.protocol import messages as m
from sfad.protocol.types import Isolation, RunInfo, Status, Worktree
from tests.conftest import Start
from tests.e2e.test_worktrees import Repository
from tests.harness import Daemon, ended, running, started, wait_until
from tests.users import FIRST, as_user, needs_root, open_directory, readable_by_all

pytestmark = [pytest.mark.needs("git"), pytest.mark.needs("bwrap")]

BOTH = [Isolation(), Isolation(network=False)]
NUMBER = str(10_000_000 + os.getpid())
"""Seconds for which a process sleeps that the run has left: by them it is found."""
SECRET = "ssh-private-key"  # noqa: S105 - a text to find


class Attacked(Repository):
    """A repository, a secret of its user, and a file that nothing may make."""

    def __init__(self, top: Path) -> None:
        super().__init__(top, directory="sub")
        self.escaped = self.path / "escaped"
        """Of which the run sees no directory: what makes it was executed outside."""
        self.secrets = self.home / ".ssh"
        self.secrets.mkdir()
        (self.secrets / "id").write_text(SECRET)

    def attack(self, daemon: Daemon, script: str, isolation: Isolation) -> RunInfo:
        options = self.options(isolation=isolation)
        given = {
            "ESCAPED": self.escaped,
            "SECRETS": self.secrets,
            "REPOSITORY": self.path,
            "NUMBER": NUMBER,
        }
        options["env"] += [f"{name}={value}".encode() for name, value in given.items()]
        with daemon.client() as client:
            return ended(client, started(client, ["sh", "-c", script], **options).id)


@pytest.fixture
def repository(tmp_path: Path) -> Attacked:
    return Attacked(tmp_path)


@pytest.fixture
def daemon(start: Start) -> Daemon:
    return start(config="[quotas]\nspawns_per_hour = 100000")


def whole(repository: Repository) -> None:
    repository.git("fsck", "--strict")
    assert repository.git("status", "--porcelain") == ""


# ---- What it writes is not the repository's


OBJECTS = """
common=$(git rev-parse --git-common-dir)
echo "$SECRETS" >> "$common/objects/info/alternates"
mv "$common/objects/info" "$common/objects/other"
rm -rf "$common"/objects/??
mkdir -p elsewhere
for x in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do for y in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do
  ln -s "$PWD/elsewhere" "$common/objects/$x$y"
done; done
rm -rf "$common/objects/pack"; ln -s "$PWD/elsewhere" "$common/objects/pack"
cat "$SECRETS/id"
"""


@pytest.mark.parametrize("isolation", BOTH)
def test_no_object_and_no_list_of_alternates_is_the_runs(
    daemon: Daemon, repository: Attacked, isolation: Isolation
) -> None:
    repository.attack(daemon, OBJECTS, isolation)
    objects = repository.path / ".git" / "objects"
    assert not (objects / "info" / "alternates").exists()
    assert not [each for each in objects.iterdir() if each.is_symlink()]
    (repository.sub / "file").write_text("by the person\n")
    repository.commit("after")
    whole(repository)
    run = repository.attack(daemon, 'cat "$SECRETS/id"; git log --oneline', isolation)
    assert SECRET not in daemon.output(run.id)
    assert len(daemon.output(run.id).splitlines()) == 2, "the commits of the person"


@pytest.mark.parametrize("isolation", BOTH)
def test_a_repository_that_borrows_objects_shows_a_run_what_its_user_names(
    daemon: Daemon, repository: Attacked, isolation: Isolation, tmp_path: Path
) -> None:
    """A run in the checkout itself may write `alternates`, as it may write all files there."""
    lent = tmp_path / "lent"
    subprocess.run(
        ["git", "clone", "-q", "--bare", str(repository.path), str(lent)],
        env=repository.env, check=True,
    )  # fmt: skip
    alternates = repository.path / ".git" / "objects" / "info" / "alternates"
    alternates.write_text(f"{repository.secrets}\n")
    said = repository.refused(daemon, isolation=isolation)
    assert f"borrows objects from {repository.secrets}" in said
    assert f"--readable {repository.secrets}" in said
    alternates.write_text(f"{lent}/objects\n")
    repository.git("repack", "-adlq")
    repository.git("prune-packed")
    readable = Isolation(network=isolation.network, readable=[os.fsencode(lent / "objects")])
    run = repository.attack(daemon, "git log -p; echo x > x; git add x; git commit -qm x", readable)
    assert "+one" in daemon.output(run.id), daemon.errors(run.id)
    assert "+x" in repository.diff(daemon, run)
    assert repository.git("log", "--format=%s", run.branch or "").split() == ["x", "first"]


TAMPERED = r"""
id=$(git rev-parse HEAD:sub/file)
common=$(git rev-parse --git-common-dir)
forged="$common/objects/$(echo "$id" | cut -c1-2)/$(echo "$id" | cut -c3-)"
mkdir -p "$(dirname "$forged")"; rm -f "$forged"
python3 -c 'import sys, zlib
open(sys.argv[1], "wb").write(zlib.compress(b"blob 5\0evil\n"))' "$forged"
git cat-file blob "$id"
echo new > new; git add new; git commit -qm new
"""


@pytest.mark.parametrize("isolation", BOTH)
def test_a_forged_object_does_not_become_a_file_of_the_person(
    daemon: Daemon, repository: Attacked, isolation: Isolation
) -> None:
    run = repository.attack(daemon, TAMPERED, isolation)
    assert daemon.output(run.id) == "evil\n", daemon.errors(run.id)
    repository.git("merge", "-q", run.branch or "")
    repository.git("checkout", "-q", "HEAD~1")
    (repository.sub / "file").unlink()
    repository.git("checkout", "-q", "--", ".")
    assert (repository.sub / "file").read_text() == "one\n"
    whole(repository)


REFS = """
git commit -q --allow-empty -m mine
git symbolic-ref refs/heads/sfad/other refs/heads/main
git symbolic-ref "$(git symbolic-ref HEAD)" refs/heads/main
common=$(git rev-parse --git-common-dir)
for each in refs/heads/main refs/tags/t packed-refs shallow info/grafts refs/replace/x config \\
  hooks/post-commit info/attributes info/exclude HEAD
do (mkdir -p "$(dirname "$common/$each")"; echo evil > "$common/$each") 2>/dev/null && echo "$each"
done
"""


@pytest.mark.parametrize("isolation", BOTH)
def test_a_run_moves_its_own_branch_alone(
    daemon: Daemon, repository: Attacked, isolation: Isolation
) -> None:
    main = repository.git("rev-parse", "main")
    run = repository.attack(daemon, REFS, isolation)
    assert daemon.output(run.id) == ""
    assert repository.git("rev-parse", "main", run.branch or "") == main * 2, (
        "what its branch stood for at the end"
    )
    symbolic = repository.git("for-each-ref", "--format=%(symref)").strip()
    assert symbolic == ""
    assert "sfad/other" not in repository.git("branch", "-a")
    whole(repository)


@pytest.mark.parametrize("isolation", BOTH)
def test_what_a_run_commits_is_on_its_branch_when_it_has_ended(
    daemon: Daemon, repository: Attacked, isolation: Isolation
) -> None:
    script = "echo more >> file; git commit -qam one; git commit -q --allow-empty -m two; exit 7"
    run = repository.attack(daemon, script, isolation)
    assert (run.status, run.exit_code) == (Status.FAILED, 7)
    assert repository.git("log", "--format=%s", run.branch or "").split() == ["two", "one", "first"]
    assert repository.git("status", "--short", cwd=Path(run.worktree or "")) == ""
    repository.git("merge", "-q", run.branch or "")
    assert (repository.sub / "file").read_text() == "one\nmore\n"
    killed = repository.attack(daemon, "kill -KILL $$", isolation)
    assert killed.exit_code == 137


@pytest.mark.parametrize("isolation", BOTH)
def test_commits_of_a_run_that_was_killed_are_shown_and_kept(
    daemon: Daemon, repository: Attacked, isolation: Isolation
) -> None:
    script = 'echo more >> file; git commit -qam one; touch "$HOME/done" done; exec sleep 1000'
    with daemon.client() as client:
        options = repository.options(isolation=isolation)
        run = started(client, ["sh", "-c", script], **options)
        done = Path(run.worktree or "") / "sub" / "done"
        wait_until(done.exists, "the run has committed")
        client.call(m.Stop(id=client.next_id(), runs=[run.id], grace=0.0), m.Stopped)
        run = ended(client, run.id)
    assert "+more" in repository.diff(daemon, run)
    told = repository.sfactl(daemon, "prune", "--worktrees")
    assert "removed 1 worktree" in told
    assert repository.git("log", "--format=%s", run.branch or "").split() == ["one", "first"]


def test_a_branch_that_the_person_has_moved_meanwhile_stays(
    daemon: Daemon, repository: Attacked
) -> None:
    script = "touch ready; until [ -e go ]; do sleep 0.05; done; git commit -qm x --allow-empty"
    with daemon.client() as client:
        run = started(client, ["sh", "-ec", script], **repository.options(isolation=Isolation()))
        at = Path(run.worktree or "") / "sub"
        wait_until((at / "ready").exists, "the run is there")
        repository.git("commit", "-q", "--allow-empty", "-m", "other")
        repository.git("update-ref", f"refs/heads/{run.branch}", "main")
        (at / "go").touch()
        run = ended(client, run.id)
    assert repository.git("log", "--format=%s", run.branch or "").split() == ["other", "first"]
    (second,) = repository.git(
        "for-each-ref", "--format=%(refname:short)", f"refs/heads/{run.branch}-*"
    ).split()
    assert repository.git("log", "--format=%s", second).split() == ["x", "first"]
    assert "removed 1 worktree" in repository.sfactl(daemon, "prune", "--worktrees")


def test_the_commits_of_an_attempt_that_was_killed_are_there_in_the_next(
    daemon: Daemon, repository: Attacked
) -> None:
    script = (
        "git log --format=%s; if [ -e again ]; then exit; fi; "
        "git commit -q --allow-empty -m one; touch again; exec sleep 1000"
    )
    options = repository.options(isolation=Isolation(), attempts=2)
    with daemon.client() as client:
        run = started(client, ["sh", "-ec", script], **options)
        done = Path(run.worktree or "") / "sub" / "again"
        wait_until(done.exists, "the run has committed")
        assert run.pid is not None
        os.kill(run.pid, signal.SIGKILL)
        run = ended(client, run.id)
    assert run.status == "completed", daemon.errors(run.id)
    assert daemon.output(run.id).split() == ["first", "one", "first"]


def test_the_person_may_pack_the_repository_during_a_run(
    daemon: Daemon, repository: Attacked
) -> None:
    script = (
        "touch ready; until [ -e go ]; do sleep 0.05; done; echo x > x; git add x; git commit -qm x"
    )
    with daemon.client() as client:
        run = started(client, ["sh", "-ec", script], **repository.options(isolation=Isolation()))
        at = Path(run.worktree or "") / "sub"
        wait_until((at / "ready").exists, "the run is there")
        repository.git("gc", "-q", "--prune=now")
        (at / "go").touch()
        run = ended(client, run.id)
    assert run.status == "completed", daemon.errors(run.id)
    assert repository.git("log", "--format=%s", run.branch or "").split() == ["x", "first"]


# ---- Nothing that it writes is executed outside


EMBEDDED = """
mkdir nested; cd nested; git init -q .
git config filter.e.clean "touch $ESCAPED; cat"; git config core.fsmonitor "touch $ESCAPED"
git config user.name n; git config user.email n
echo '* filter=e' > .gitattributes; echo x > x; git add .gitattributes; git commit -qm x; git add x
echo y > x
cd ..; git add nested; git commit -qm nested; echo z > nested/x
"""
RELATIVE = """
printf '#!/bin/sh\\ntouch "$ESCAPED" "%s"; cat\\n' "$ESCAPED" > tool
echo "sleep $NUMBER < /dev/null > /dev/null 2>&1 &" >> tool
chmod +x tool; cp tool ..
echo '* filter=own diff=own' > .gitattributes; echo changed > file
"""
CONFIGS = """
admin=$(git rev-parse --git-dir)
evil="[core]
\tfsmonitor = touch \\"$ESCAPED\\"
\thooksPath = $PWD/hooks
\tsshCommand = touch $ESCAPED
\tpager = touch $ESCAPED
[diff]
\texternal = touch $ESCAPED
[include]
\tpath = $PWD/more
[alias]
\tdiff = !touch $ESCAPED
"
mkdir hooks; for hook in post-index-change reference-transaction post-checkout; do
printf '#!/bin/sh\\ntouch "%s"\\n' "$ESCAPED" > hooks/$hook; chmod +x hooks/$hook; done
for each in config config.worktree; do printf '%s' "$evil" > "$admin/$each"; done
mkdir -p "$admin/info"; echo '* filter=e' > "$admin/info/attributes"
printf '[submodule "s"]\\n path = s\\n url = ext::touch %s\\n update = !touch %s\\n' \\
  "$ESCAPED" "$ESCAPED" > ../.gitmodules
rm ../.git; mkdir ../.git; cp "$admin/HEAD" ../.git; mkdir ../.git/objects ../.git/refs
printf '%s' "$evil" > ../.git/config
echo changed > file
"""


@pytest.mark.parametrize("isolation", BOTH)
@pytest.mark.parametrize("script", [EMBEDDED, RELATIVE, CONFIGS])
def test_no_program_that_a_run_names_is_executed_outside(
    daemon: Daemon, repository: Attacked, isolation: Isolation, script: str
) -> None:
    for key in ("filter.own.clean", "filter.own.smudge", "diff.own.textconv"):
        repository.git("config", key, "./tool")
    repository.git("config", "extensions.worktreeConfig", "true")
    run = repository.attack(daemon, script, isolation)
    assert run.exit_code == 0, daemon.errors(run.id)
    for verb in (
        ["diff", run.id],
        ["diff", run.id, "--stat"],
        ["prune", "--worktrees", "--dry-run"],
    ):
        repository.sfactl(daemon, *verb)
        assert not repository.escaped.exists(), verb
    left = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert not [each for each in left if NUMBER in each], "what it started has ended as well"
    assert "changed" in repository.diff(daemon, run) or "nested" in repository.diff(daemon, run)


@pytest.mark.parametrize("isolation", BOTH)
def test_a_worktree_that_is_asked_for_inside_another_obeys_nothing_in_it(
    daemon: Daemon, repository: Attacked, isolation: Isolation
) -> None:
    """Another repository in its place would be one that the run has made: a partial clone, whose
    missing commit git fetches by a program that its config names."""
    script = """
    echo mine > file; git commit -qam mine
    rm ../.git; git init -q --bare ../.git; cd ..
    git config -f .git/config core.bare false
    git config -f .git/config core.repositoryFormatVersion 1
    git config -f .git/config extensions.partialClone origin
    git config -f .git/config remote.origin.url "$PWD"
    git config -f .git/config remote.origin.promisor true
    git config -f .git/config remote.origin.uploadpack "touch $ESCAPED; git-upload-pack"
    git config -f .git/config core.fsmonitor "touch $ESCAPED"
    echo 1111111111111111111111111111111111111111 > .git/HEAD
    mkdir -p deeper; cp -r .git deeper/.git
    echo '{"path": "/"}' > "$PWD/deeper.json"
    """
    run = repository.attack(daemon, script, isolation)
    top = Path(run.worktree or "")
    for place in (top, top / "sub", top / "deeper"):
        with daemon.client() as client:
            options = repository.options() | {"cwd": os.fsencode(place)}
            inner = ended(client, started(client, ["git", "log", "--format=%s"], **options).id)
        assert daemon.output(inner.id).split() == ["mine", "first"], daemon.errors(inner.id)
        assert (inner.worktree or "").startswith(str(top.parent))
        assert not repository.escaped.exists()


def test_what_lands_elsewhere_from_within_its_worktree_obeys_nothing_in_it(
    daemon: Daemon, repository: Attacked
) -> None:
    """The `.git` there leads to a config of the run and to the objects of the repository."""
    script = """
    common=$(git rev-parse --git-common-dir); admin=$(git rev-parse --git-dir); cd ..
    cp -r "$admin" evil; rm .git; echo "gitdir: $PWD/evil" > .git
    echo "$common" > evil/commondir; echo "$PWD/.git" > evil/gitdir
    mkdir hooks; printf '#!/bin/sh\ntouch "%s"\n' "$ESCAPED" > hooks/reference-transaction
    cp hooks/reference-transaction hooks/sign; chmod +x hooks/*
    git config -f evil/config.worktree core.hooksPath "$PWD/hooks"
    git config -f evil/config.worktree commit.gpgSign true
    git config -f evil/config.worktree gpg.program "$PWD/hooks/sign"
    """
    repository.git("config", "extensions.worktreeConfig", "true")
    repository.git("branch", "release")
    plain = repository.run(daemon, "echo two > file")
    run = repository.attack(daemon, script, Isolation())
    top = Path(run.worktree or "")
    for how in ("--squash", "--merge"):
        repository.sfactl(daemon, "land", plain.id, "--onto", "release", how, cwd=top)
        assert not repository.escaped.exists()
    assert repository.git("show", "release:sub/file") == "two\n"
    done = subprocess.run(
        [sys.executable, "-m", "sfactl", "land", plain.id],
        env=daemon.env | repository.env, cwd=top, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"is the worktree of run {run.id}, which was isolated: cd to a" in done.stderr


def test_only_an_isolated_run_works_where_another_has_worked(
    daemon: Daemon, repository: Attacked
) -> None:
    run = repository.attack(daemon, "true", Isolation())
    again = repository.run(daemon, "echo was here > file", Worktree(of=run.id))
    assert again.exit_code == 126
    assert f"run {run.id} was isolated" in daemon.errors(again.id)
    assert "add --isolate" in daemon.errors(again.id)


@pytest.mark.parametrize("isolation", BOTH)
def test_a_file_name_is_shown_without_its_escapes(
    daemon: Daemon, repository: Attacked, isolation: Isolation
) -> None:
    script = "touch \"$(printf 'a\\033]0;x\\007b\\nc')\"; printf '\\033[2J' > file"
    run = repository.attack(daemon, script, isolation)
    (header,) = (line for line in repository.diff(daemon, run).splitlines() if "a\\033" in line)
    assert "\x1b" not in header


# ---- It can always be removed


REMOVED = """
admin=$(git rev-parse --git-dir)
echo /nowhere/.git > "$admin/gitdir"; echo /nowhere > "$admin/commondir"
echo 'ref: refs/heads/../../x' > "$admin/HEAD"; echo broken > "$admin/index"
rm -rf ../.git; ln -s / ../.git
mkdir -p closed/below; touch closed/below/file; chmod 000 closed/below closed
"""


NO_HEAD = 'at=$(git rev-parse --git-dir); rm "$at/HEAD"; mkfifo "$at/HEAD"; rm "$at/index"'
GITDIR = 'echo /nowhere/.git > "$(git rev-parse --git-dir)/gitdir"'


@pytest.mark.parametrize("script", [REMOVED, GITDIR, NO_HEAD])
@pytest.mark.parametrize("isolation", [None, *BOTH])
def test_whatever_a_run_writes_for_git_its_worktree_is_removed(
    daemon: Daemon, repository: Attacked, isolation: Isolation | None, script: str
) -> None:
    before = repository.state()
    if isolation is None:
        repository.run(daemon, script)
    else:
        repository.attack(daemon, script, isolation)
    told = json.loads(repository.sfactl(daemon, "prune", "--worktrees", "--yes", "--json"))
    assert (told["worktrees_failed"], len(told["worktrees_removed"])) == ([], 1)
    repository.git("worktree", "prune")
    assert repository.state() == before


PIPES = (
    'ref="$common/$(git symbolic-ref HEAD)"; rm -f "$ref"; mkfifo "$ref"',
    'mkfifo "$common/refs/heads/sfad/pipe"',
    'ref="$common/$(git symbolic-ref HEAD)"; rm -f "$ref"; mkfifo p; ln -s "$PWD/p" "$ref"',
    'mkfifo "$(git rev-parse --git-dir)/logs-of"',
    'rm -f "$(git rev-parse --git-dir)/index"; mkfifo "$(git rev-parse --git-dir)/index"',
    'git commit -q --allow-empty -m x; mkfifo "$common/objects/pack/pack-1.idx"',
    "git commit -q --allow-empty -m x; mkfifo ../.gitattributes",
    "git commit -q --allow-empty -m x; rm -f ../.gitignore; mkfifo .gitignore",
)


@pytest.mark.parametrize("script", PIPES)
def test_git_waits_for_no_pipe_of_a_run(daemon: Daemon, repository: Attacked, script: str) -> None:
    """Without a check, each look would wait for two minutes."""
    script = f"common=$(git rev-parse --git-common-dir); echo two > file; {script}"
    begun = time.monotonic()
    run = repository.attack(daemon, script, Isolation())
    assert run.exit_code == 0, daemon.errors(run.id)
    record = worktrees.read_record(run.worktree or "")
    assert record is not None
    with (
        pytest.raises(GitError, match=r"is not read: .* is a (pipe|link)"),
        private.left(record, repository.env, uncommitted=True),
    ):
        pass
    assert "is not read" in repository.sfactl(daemon, "why", run.id)
    other = repository.attack(daemon, "true", Isolation())
    told = json.loads(repository.sfactl(daemon, "prune", "--worktrees", "--yes", "--json"))
    assert len(told["worktrees_removed"]) == 2, other
    assert time.monotonic() - begun < git_runs.PATIENCE


def test_what_takes_too_long_to_read_is_tried_once(
    daemon: Daemon, repository: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = repository.attack(daemon, "echo two > file", Isolation())
    record = worktrees.read_record(run.worktree or "")
    assert record is not None
    monkeypatch.setattr(private, "PATIENCE", 0.001)
    for _ in range(2):
        with (
            pytest.raises(GitError, match="takes too long to read"),
            private.left(record, repository.env, uncommitted=True),
        ):
            pass
        monkeypatch.undo()


def test_a_file_of_gigabytes_is_named(daemon: Daemon, repository: Attacked) -> None:
    run = repository.attack(daemon, "truncate -s 3G big; echo two > file", Isolation())
    assert "sub/big has more than 1 GiB" in repository.sfactl(daemon, "why", run.id)
    (Path(run.worktree or "") / ".gitignore").write_text("big\n")
    assert "1 GiB" not in repository.sfactl(daemon, "why", run.id)
    assert "+two" in repository.diff(daemon, run)


@pytest.mark.parametrize("isolation", BOTH)
def test_a_worktree_of_its_commits_is_made_without_hooks(
    daemon: Daemon, repository: Attacked, isolation: Isolation
) -> None:
    """Hooks and filters are looked for in the new worktree, whose files are the run's."""
    repository.git("config", "core.hooksPath", ".husky")
    script = """
mkdir ../.husky; for hook in post-checkout post-index-change reference-transaction; do
printf '#!/bin/sh\\ntouch "%s"\\n' "$ESCAPED" > ../.husky/$hook; chmod +x ../.husky/$hook; done
cp ../.husky/post-checkout ../.tool; echo '*.txt filter=own' > ../.gitattributes; echo x > x.txt
git add ..; git commit -qm hooks
"""
    run = repository.attack(daemon, script, isolation)
    with daemon.client() as client:
        options = repository.options() | {"cwd": os.fsencode(run.worktree or "")}
        inner = ended(client, started(client, ["cat", "x.txt"], **options).id)
    assert inner.worktree != run.worktree
    repository.sfactl(daemon, "prune", "--worktrees", "--yes")
    again = repository.run(daemon, "true", Worktree(of=run.id), isolation=isolation)
    assert again.exit_code == 0, daemon.errors(again.id)
    assert not repository.escaped.exists()
    repository.sfactl(daemon, "prune", "--worktrees", "--yes")
    repository.git("config", "filter.own.smudge", "./.tool")
    again = repository.run(daemon, "true", Worktree(of=run.id), isolation=isolation)
    assert "filter.own.smudge = ./.tool" in daemon.errors(again.id)
    assert not repository.escaped.exists()


@needs_root
def test_the_user_of_a_run_gets_its_commits_and_removes_what_it_has_closed() -> None:
    """A user of root's daemon: root itself could look into each directory."""
    codecs.lookup("ascii")  # the other user may not read where Python is installed
    config = '[access]\nusers = "all"\n'
    with open_directory() as top:
        (top / "d").mkdir(mode=0o755)
        with running(top / "d", config=config, wrap=readable_by_all(top)) as daemon:
            place = top / "place"
            place.mkdir()
            os.chown(place, FIRST, FIRST)

            def submit() -> tuple[list[str], bool]:
                repository = Attacked(place)
                script = (
                    "git commit -q --allow-empty -m one; mkdir -p closed/below; "
                    "touch closed/below/file; chmod 000 closed/below closed"
                )
                run = repository.attack(daemon, script, Isolation())
                record = worktrees.read_record(run.worktree or "")
                assert record is not None
                worktrees.remove(record, repository.env, branch=False)
                commits = repository.git("log", "--format=%s", run.branch or "").split()
                return commits, os.path.lexists(record.path)

            assert as_user(FIRST, submit) == (["one", "first"], False)
