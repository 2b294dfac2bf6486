"""Runs in git worktrees of their own: real repositories, real daemons."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sfad.core.state.run import run_id, run_number
from sfad.features.worktrees import worktrees
from sfad.features.worktrees.record import Record
from sfad.git.commands import LOCAL, SETTINGS
from sfad.protocol import messages as m
from sfad.protocol.types import Isolation, RunInfo, Status, Worktree
from tests.conftest import Start
from tests.harness import Daemon, ended, running, spawn, started, stopped, strays, wait_until
from tests.tiers import variant
from tests.users import FIRST, SECOND, as_user, needs_root, open_directory, readable_by_all

pytestmark = pytest.mark.needs("git")

NEW = Worktree()


class Repository:
    """A repository with one commit, and a home directory for its user."""

    def __init__(self, top: Path, *, directory: str = "sub dir\nwith a newline") -> None:
        self.home = top / "home"
        self.path = top / "repository"
        self.sub = self.path / directory
        self.sub.mkdir(parents=True)
        self.home.mkdir(exist_ok=True)
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "GIT_CONFIG_NOSYSTEM": "1"}
        for key, value in (
            ("user.name", "n"),
            ("user.email", "n@example.com"),
            ("protocol.file.allow", "always"),
        ):
            self.git("config", "--global", key, value)
        self.git("init", "-q", "-b", "main")
        (self.sub / "file").write_text("one\n")
        self.commit("first")

    def git(self, *words: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=cwd or self.path,
            env=self.env,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def commit(self, message: str) -> None:
        self.git("add", ".")
        self.git("commit", "-qm", message)

    def state(self) -> tuple[str, ...]:
        """Return what must be as before once nothing of a run is left."""
        records = [record.path for record in worktrees.records(self.env)]
        kept = str([*(self.home / ".local/share/sfad/worktrees").glob("*")])
        return (
            self.git("worktree", "list"),
            self.git("branch", "-a"),
            self.git("status", "--porcelain"),
            str(records),
            kept,
        )

    def options(self, worktree: Worktree | None = NEW, **more: Any) -> dict[str, Any]:
        env = [os.fsencode(f"{name}={value}") for name, value in self.env.items()]
        return {"cwd": os.fsencode(self.sub), "env": env, "worktree": worktree} | more

    def run(
        self, daemon: Daemon, script: str, worktree: Worktree | None = NEW, **more: Any
    ) -> RunInfo:
        with daemon.client() as client:
            return ended(
                client, started(client, ["sh", "-ec", script], **self.options(worktree, **more)).id
            )

    def refused(self, daemon: Daemon, worktree: Worktree = NEW, **more: Any) -> str:
        with daemon.client() as client:
            reply = spawn(client, ["true"], **self.options(worktree, **more))
        assert isinstance(reply, m.Error), reply
        return reply.message

    def sfactl(self, daemon: Daemon, *words: str, cwd: Path | None = None) -> str:
        env = daemon.env | self.env
        done = subprocess.run(
            [sys.executable, "-m", "sfactl", *words],
            env=env,
            capture_output=True,
            text=True,
            cwd=cwd,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def diff(self, daemon: Daemon, run: RunInfo, *words: str) -> str:
        text = json.loads(self.sfactl(daemon, "diff", run.id, "--json", *words))["diff"]
        assert isinstance(text, str)
        return text


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.fixture
def daemon(share: Start) -> Daemon:
    return share(config="[quotas]\nspawns_per_hour = 100000")


def test_six_at_once_change_nothing_of_the_checkout_and_each_diff_is_its_own(
    daemon: Daemon, repository: Repository
) -> None:
    before = repository.state()
    script = "echo {0} > file; git commit -qam {0}; echo {0} >> file; echo {0} > 'new {0}'; sleep 1"
    with daemon.client() as client:
        runs = [
            started(
                client,
                ["sh", "-ec", script.format(number)],
                **repository.options(),
                name=f"agent{number}",
            )
            for number in range(6)
        ]
        runs = [ended(client, run.id) for run in runs]
    assert [run.status for run in runs] == ["completed"] * 6
    assert repository.state()[2] == before[2]
    assert (repository.sub / "file").read_text() == "one\n"
    assert [run.branch for run in runs] == [
        f"sfad/agent{number}-{run.id}" for number, run in enumerate(runs)
    ]
    for number, run in enumerate(runs):
        changed = [
            line
            for line in repository.diff(daemon, run).splitlines()
            if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        assert changed == ["-one", f"+{number}", f"+{number}", f"+{number}"]
        assert "2 files changed" in repository.diff(daemon, run, "--stat")
    index = (
        Path(
            repository.git(
                "rev-parse", "--absolute-git-dir", cwd=Path(runs[0].worktree or "")
            ).strip()
        )
        / "index"
    )
    content = index.read_bytes()
    repository.diff(daemon, runs[0])
    assert index.read_bytes() == content, "the index of the worktree is as it was"


def test_it_works_in_the_same_directory_and_no_variable_leads_git_elsewhere(
    daemon: Daemon, repository: Repository
) -> None:
    options = repository.options()
    options["env"] += [
        b"GIT_DIR=" + os.fsencode(repository.path / ".git"),
        b"GIT_INDEX_FILE=/nowhere",
        b"PWD=/elsewhere",
    ]
    run = repository.run(
        daemon, 'pwd; git rev-parse --show-toplevel; echo "$PWD"', **options | {"worktree": NEW}
    )
    assert run.worktree is not None
    assert daemon.output(run.id) == f"{run.cwd}\n{run.worktree}\n{run.cwd}\n"
    assert run.cwd == f"{run.worktree}/{repository.sub.name}"
    assert Path(run.worktree).parent == repository.home / ".local/share/sfad/worktrees"


@pytest.mark.parametrize(
    ("branch", "why"),
    [
        ("main", "the branch 'main' exists"), ("main/x", "the branch 'main' exists"),
        ("--upload-pack=x", "cannot be the name"), ("-d", "cannot be the name"),
        ("a b", "cannot be the name"), ("a\nb", "cannot be the name"),
        ("a..b", "cannot be the name"), ("HEAD", "cannot be the name"), ("x" * 300, "at most 200"),
    ],
)  # fmt: skip
def test_a_branch_that_cannot_be_made_is_refused(
    daemon: Daemon, repository: Repository, branch: str, why: str
) -> None:
    before = repository.state()
    assert why in repository.refused(daemon, Worktree(branch=branch))
    assert repository.state() == before


@variant
def test_the_worktrees_of_a_user_have_a_bound_on_the_disk(
    start: Start, repository: Repository
) -> None:
    daemon = start(config='[worktrees]\nsize = "2MiB"\n')
    first = repository.run(daemon, "head -c 3000000 /dev/urandom > file; sleep 0.1")
    before = repository.state()
    assert "your worktrees take more than 2097152 bytes" in repository.refused(daemon)
    assert "sfactl prune --worktrees" in repository.refused(daemon)
    assert repository.state() == before
    again = repository.run(daemon, "test -s file", Worktree(of=first.id))
    assert again.exit_code == 0, "it works in the one that is there"


def test_a_place_without_a_checkout_is_refused(
    daemon: Daemon, repository: Repository, tmp_path: Path
) -> None:
    before = repository.state()
    bare, empty = tmp_path / "bare.git", tmp_path / "empty"
    repository.git("clone", "-q", "--bare", str(repository.path), str(bare))
    repository.git("init", "-q", str(empty))
    for place, why in (
        (tmp_path, "not a git repository"), (bare, "is bare"), (empty, "has no commit yet"),
        (repository.path / ".git", "belongs to the repository itself"), (tmp_path / "gone", ""),
    ):  # fmt: skip
        assert why in repository.refused(daemon, cwd=os.fsencode(place))
    assert "git is not in the PATH" in repository.refused(daemon, env=[b"PATH=/nowhere", b"HOME=/"])
    assert repository.state() == before


def test_a_branch_that_appears_meanwhile_fails_the_run_and_leaves_nothing(
    daemon: Daemon, repository: Repository
) -> None:
    """Its id is not known before it is admitted, so the default branch may be there."""
    run = repository.run(daemon, "true", name="first")
    following = run_id(run_number(run.id) + 1)
    repository.git("branch", f"sfad/second-{following}")
    before = repository.state()
    run = repository.run(daemon, "true", name="second")
    assert (run.status, run.exit_code) == (Status.FAILED, 126)
    assert f"the branch 'sfad/second-{following}' exists" in daemon.errors(run.id)
    assert repository.state() == before


def test_submodules_sparse_checkouts_and_hooks_are_as_in_a_worktree_that_a_person_makes(
    daemon: Daemon, tmp_path: Path
) -> None:
    # git sparse-checkout takes no newline
    repository, other = (
        Repository(tmp_path, directory="sub dir"),
        Repository(tmp_path / "other", directory="sub dir"),
    )
    repository.git("submodule", "add", "-q", str(other.path), "module")
    (repository.path / "left out").mkdir()
    (repository.path / "left out" / "x").write_text("x\n")
    repository.commit("more")
    repository.git(
        "sparse-checkout", "set", "--cone", "--skip-checks", repository.sub.name, "module"
    )
    hook = repository.path / ".git" / "hooks" / "post-checkout"
    hook.write_text('#!/bin/sh\necho "hook $3" >> "$HOME/hooks"\nexit 3\n')
    hook.chmod(0o755)
    person = tmp_path / "person"
    subprocess.run(
        ["git", "worktree", "add", "-q", str(person)],
        cwd=repository.path,
        env=repository.env,
        check=False,
    )
    run = repository.run(
        daemon,
        (
            "cd ..; ls -A; git status --short; git submodule update -q --init; ls module; "
            "echo y > module/y"
        ),
    )
    assert run.status == "completed", daemon.errors(run.id)
    listed, _, module = daemon.output(run.id).partition("module\n")
    assert listed.split() == sorted(os.listdir(person))[: len(listed.split())]
    assert "left out" not in daemon.output(run.id)
    assert module.endswith(f"{other.sub.name}\n")
    assert (repository.home / "hooks").read_text() == "hook 1\nhook 1\n"
    assert "-dirty" in repository.diff(daemon, run)
    assert "x\n" not in repository.diff(daemon, run), "what the checkout leaves out was not deleted"


@pytest.mark.needs("git-lfs")
def test_lfs(daemon: Daemon, tmp_path: Path) -> None:
    repository = Repository(tmp_path, directory="sub")
    repository.git("lfs", "install", "--local")
    repository.git("lfs", "track", "*.bin")
    (repository.sub / "large.bin").write_bytes(b"content\n")
    repository.commit("large")
    run = repository.run(daemon, "cat large.bin; git lfs ls-files | wc -l; git status --short")
    assert daemon.output(run.id) == "content\n1\n"
    assert repository.diff(daemon, run) == ""


CHILD = """
import json, subprocess, sys
def child(*options):
    words = ["run", "--json", "--name", "child", *options, "--", "true"]
    told = subprocess.run([sys.executable, "-m", "sfactl", *words], capture_output=True, text=True)
    return json.loads(told.stdout) if told.stdout else told.stderr
print(json.dumps([child(), child("--worktree"), child("--cwd", "/")]))
"""


def test_children_work_in_the_worktree_of_their_parent_unless_they_ask_for_one(
    daemon: Daemon, repository: Repository
) -> None:
    env = [f"{name}={value}".encode() for name, value in (daemon.env | repository.env).items()]
    env.append(b"PYTHONPATH=" + os.fsencode(os.getcwd()))
    with daemon.client() as client:
        run = ended(
            client, started(client, [sys.executable, "-c", CHILD], **repository.options(env=env)).id
        )
    shared, own, outside = json.loads(daemon.output(run.id))
    assert (shared["worktree"], shared["branch"], shared["cwd"]) == (
        run.worktree,
        run.branch,
        run.cwd,
    )
    assert own["worktree"] not in (None, run.worktree)
    assert own["branch"] == f"sfad/child-{own['id']}"
    assert "worktree" not in outside or outside["worktree"] is None


def test_a_rerun_works_there_again_or_has_it_made_again(
    daemon: Daemon, repository: Repository
) -> None:
    first = repository.run(daemon, "echo more >> file; cat file", Worktree(branch="work/one"))
    assert (first.branch, daemon.output(first.id)) == ("work/one", "one\nmore\n")
    again = repository.sfactl(daemon, "rerun", first.id).split()[0]
    with daemon.client() as client:
        second = ended(client, again)
    assert (second.worktree, second.branch, daemon.output(second.id)) == (
        first.worktree,
        "work/one",
        "one\nmore\nmore\n",
    )
    assert repository.diff(daemon, second).count("\n+more") == 1, "what it changed itself"
    assert repository.diff(daemon, first).count("\n+more") == 2
    repository.git("worktree", "remove", "--force", first.worktree or "")
    with daemon.client() as client:
        third = ended(client, repository.sfactl(daemon, "rerun", second.id).split()[0])
        assert (third.worktree, daemon.output(third.id)) == (first.worktree, "one\nmore\n")
        lives = started(client, ["sleep", "1000"], **repository.options(Worktree(of=third.id)))
        reply = spawn(client, ["true"], **repository.options(Worktree(of=third.id)))
        assert f"run {lives.id} works in the worktree of run {third.id}" in getattr(
            reply, "message", ""
        )
        client.call(m.Stop(id=client.next_id(), runs=[lives.id]), m.Stopped)


def test_two_that_ask_at_once_for_the_worktree_of_a_run_do_not_both_get_it(
    daemon: Daemon, repository: Repository
) -> None:
    first = repository.run(daemon, "true")
    with daemon.client() as client:
        env, cwd = (repository.options()[name] for name in ("env", "cwd"))
        for _ in range(4):
            client.send(
                m.Spawn(
                    id=client.next_id(),
                    argv=[b"sleep", b"9"],
                    cwd=cwd,
                    env=env,
                    worktree=Worktree(of=first.id),
                )
            )
        replies: list[m.Reply] = []
        while len(replies) < 4:
            replies += [answer.reply for answer in client.arrived()]
        [run] = [reply.run.id for reply in replies if isinstance(reply, m.RunReply)]
        said = [reply.message for reply in replies if isinstance(reply, m.Error)]
        stopped(client, run)
    assert (
        said
        == [f"run {run} works in the worktree of run {first.id}: wait for its end, or take another"]
        * 3
    )


def test_a_request_for_the_worktree_of_a_run_may_be_repeated(
    daemon: Daemon, repository: Repository
) -> None:
    first = repository.run(daemon, "true")
    with daemon.client() as client:
        options = repository.options(Worktree(of=first.id), key=f"again-{first.id}")
        run = started(client, ["sleep", "9"], **options)
        assert started(client, ["sleep", "9"], **options).id == run.id
        stopped(client, run.id)


def test_one_that_is_repeated_while_git_looks_gets_the_same_run(
    daemon: Daemon, repository: Repository
) -> None:
    """The first of them that git has answered takes the worktree, also from the others."""
    first = repository.run(daemon, "true")
    options = repository.options(Worktree(of=first.id), key=f"at-once-{first.id}")
    with daemon.client() as client:
        for _ in range(4):
            client.send(m.Spawn(id=client.next_id(), argv=[b"sleep", b"9"], **options))
        replies: list[m.Reply] = []
        while len(replies) < 4:
            replies += [answer.reply for answer in client.arrived()]
        runs = {reply.run.id if isinstance(reply, m.RunReply) else reply for reply in replies}
        assert len(runs) == 1
        stopped(client, str(runs.pop()))


def test_a_diff_in_json_can_be_applied(
    daemon: Daemon, repository: Repository, tmp_path: Path
) -> None:
    patch = tmp_path / "patch"
    patch.write_text(repository.diff(daemon, repository.run(daemon, "echo two >> file")))
    repository.git("apply", str(patch))
    assert (repository.sub / "file").read_text() == "one\ntwo\n"


def test_a_repository_whose_name_is_not_utf8(daemon: Daemon, tmp_path: Path) -> None:
    repository = Repository(tmp_path / os.fsdecode(b"caf\xe9"), directory=os.fsdecode(b"d\xe9p"))
    repository.env["XDG_DATA_HOME"] = str(tmp_path / "data")
    run = repository.run(daemon, "printf 'caf\\351\\n' > file")
    assert run.status == "completed", daemon.errors(run.id)
    assert "\n+caf\\xe9" in repository.diff(daemon, run)
    repository.env["XDG_DATA_HOME"] = os.fsdecode(b"%b/d\xe9" % os.fsencode(tmp_path))
    run = repository.run(daemon, "echo two > file")
    kept = json.loads(repository.sfactl(daemon, "prune", "--keep", "0", "--json"))["worktrees_kept"]
    assert kept[0]["path"] == run.worktree


@needs_root
def test_a_repository_of_another_user_is_refused_with_the_way_out(
    daemon: Daemon, repository: Repository
) -> None:
    for place in (repository.path, repository.path / ".git", repository.sub):
        os.chown(place, FIRST, FIRST)
    said = repository.refused(daemon)
    assert "detected dubious ownership" in said
    assert "git config --global --add safe.directory" in said


def test_prune_removes_what_has_no_changes_and_names_the_others(
    start: Start, repository: Repository
) -> None:
    daemon, before = start(), repository.state()
    for script in (
        "true",
        "git commit -q --allow-empty -m empty",
        "echo x > untracked",
        "git checkout -q --detach HEAD",
        "rm .git ../.git",
    ):
        repository.run(daemon, script, name="x")
    merged = repository.run(daemon, "echo merged > file; git commit -qam merged")
    repository.git("merge", "-q", merged.branch or "")
    repository.git("update-ref", "refs/heads/main", "main~1")
    repository.git("branch", "other", merged.branch or "")
    told = repository.sfactl(daemon, "prune", "--keep", "0", "--dry-run")
    assert "would remove 3 worktrees" in told
    told = repository.sfactl(daemon, "prune", "--keep", "0")
    assert "removed 3 worktrees" in told
    kept = (line for line in told.splitlines() if line.startswith("kept the worktree"))
    assert sorted(line.partition("): ")[2] for line in kept) == [
        "git does not know it as a worktree any more",
        "it has changes that are not committed",
        "it has commits that only branches of runs have",
    ]
    assert (
        json.loads(repository.sfactl(daemon, "prune", "--worktrees", "--json"))["worktrees_kept"]
        == []
    )
    repository.git("worktree", "prune")
    after = repository.state()
    assert after[0] == before[0].replace(before[0].split()[1], after[0].split()[1])
    assert after[3:] == before[3:]
    assert len(repository.git("branch", "--list", "sfad/*").split()) == 1, (
        "only the branch with a commit of its own stays"
    )


def test_many_worktrees_made_at_once_and_pruned_leave_nothing(
    start: Start, repository: Repository
) -> None:
    daemon, before = (
        start(config="[quotas]\nspawns_per_hour = 1000\ntrees = 100\ntrees_per_user = 100\n"),
        repository.state(),
    )
    with daemon.client() as client:
        runs = [
            started(client, ["true"], **repository.options(), name=f"n{number}")
            for number in range(12)
        ]
        assert [ended(client, run.id).status for run in runs] == ["completed"] * 12
    assert len(repository.git("worktree", "list").splitlines()) == 13
    assert "removed 12 worktrees" in repository.sfactl(daemon, "prune", "--keep", "0")
    assert repository.state() == before


# ---- A daemon that is killed in the middle


def block(repository: Repository, *, before_it_is_whole: bool) -> None:
    """Have git wait while it makes a worktree."""
    gate = repository.home / "gate"
    os.mkfifo(gate)
    script = f'#!/bin/sh\ntouch "$HOME/waits"\nread -r line < "{gate}"\n'
    if before_it_is_whole:
        (repository.path / ".gitattributes").write_text("* filter=slow\n")
        repository.commit("attributes")
        program = repository.home / "filter"
        program.write_text(f"{script}cat\n")
        program.chmod(0o755)
        repository.git("config", "filter.slow.smudge", str(program))
    else:
        hook = repository.path / ".git" / "hooks" / "post-checkout"
        hook.write_text(script)
        hook.chmod(0o755)


@pytest.mark.parametrize("before_it_is_whole", [True, False])
def test_a_run_whose_daemon_is_killed_while_git_makes_its_worktree_goes_on(
    start: Start, repository: Repository, before_it_is_whole: bool
) -> None:
    daemon = start()
    block(repository, before_it_is_whole=before_it_is_whole)
    with daemon.client() as client:
        run = started(client, ["sh", "-ec", "cat file; echo two > file"], **repository.options())
    wait_until((repository.home / "waits").exists, "git waits")
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        wait_until(lambda: _pass(repository, client, run), "the run ends")
        run = ended(client, run.id)
    assert (run.status, run.exit_code) == (Status.COMPLETED, 0), run.reason
    assert daemon.output(run.id) == "one\n"
    assert "+two" in repository.diff(daemon, run), (
        "of the same size, and perhaps in the second in which git wrote the index"
    )


def _pass(repository: Repository, client: Any, run: RunInfo) -> bool:
    """Let each further filter go on. Return whether the run has ended."""
    # the new daemon may have killed a filter: its file is still there, and nobody reads
    with (
        suppress(OSError),
        open(os.open(repository.home / "gate", os.O_WRONLY | os.O_NONBLOCK), "w") as gate,
    ):
        (repository.home / "waits").unlink()
        gate.write("\n")
    return bool(
        client.call(m.Info(id=client.next_id(), run=run.id), m.RunReply).run.status.terminal
    )


@pytest.mark.parametrize("before_it_is_whole", [True, False])
def test_what_is_half_made_when_everything_is_killed_is_made_again_or_removed(
    start: Start, repository: Repository, before_it_is_whole: bool
) -> None:
    daemon = start()
    block(repository, before_it_is_whole=before_it_is_whole)
    before = repository.state()
    with daemon.client() as client:
        run = started(client, ["true"], **repository.options())
    wait_until((repository.home / "waits").exists, "git waits")
    daemon.kill()
    for stray in strays(daemon.instance):
        stray.send_signal(signal.SIGKILL)
    wait_until(lambda: not strays(daemon.instance), "all are gone")
    (repository.path / ".git" / "hooks" / "post-checkout").unlink(missing_ok=True)
    if before_it_is_whole:
        repository.git("config", "--unset-all", "filter.slow.smudge")
    daemon.restart()
    with daemon.client() as client:
        assert ended(client, run.id).status == "lost"
        again = ended(client, repository.sfactl(daemon, "rerun", run.id).split()[0])
        assert (again.status, again.worktree, again.branch) == (
            "completed",
            run.worktree,
            run.branch,
        )
    assert "removed 1 worktree" in repository.sfactl(daemon, "prune", "--keep", "0")
    assert repository.state() == before


def test_a_run_that_is_stopped_while_git_makes_its_worktree_leaves_nothing_after_prune(
    daemon: Daemon, repository: Repository
) -> None:
    block(repository, before_it_is_whole=True)
    before = repository.state()
    with daemon.client() as client:
        run = started(client, ["true"], **repository.options())
        wait_until((repository.home / "waits").exists, "git waits")
        client.call(m.Stop(id=client.next_id(), runs=[run.id], grace=0.0), m.Stopped)
    assert "removed 1 worktree" in repository.sfactl(daemon, "prune", "--worktrees")
    assert repository.state() == before


def test_prune_keeps_the_changes_of_a_worktree_where_land_finds_them(
    daemon: Daemon, repository: Repository
) -> None:
    first = repository.run(daemon, "echo kept > notes; git commit -q --allow-empty -m empty")
    second = repository.run(
        daemon, "git checkout -q --detach; echo kept > more; git add more; git commit -qm more"
    )
    refs = [f"refs/sfad/{os.path.basename(run.worktree or '')}" for run in (first, second)]
    would = repository.sfactl(daemon, "prune", "--worktrees", "--dry-run")
    line = f"  would keep the changes of run {first.id} as {refs[0]}: sfactl land {first.id}"
    assert line in would.splitlines()
    assert would.splitlines()[:3] == [
        "would remove 2 worktrees",
        *(f"  {path}" for path in sorted(run.worktree or "" for run in (first, second))),
    ]
    assert repository.git("for-each-ref", "refs/sfad") == ""
    saved = json.loads(repository.sfactl(daemon, "prune", "--worktrees", "--json"))[
        "worktrees_saved"
    ]
    assert sorted((each["run"], each["ref"]) for each in saved) == sorted(
        zip((first.id, second.id), refs, strict=True)
    )
    for run, name in ((first, "notes"), (second, "more")):
        assert not os.path.exists(run.worktree or "")
        repository.sfactl(daemon, "land", run.id, cwd=repository.path)
        assert (repository.sub / name).read_text() == "kept\n"


def test_prune_names_the_branches_with_work_that_has_not_landed(
    daemon: Daemon, repository: Repository
) -> None:
    commit = "echo {0} > {0}; git add {0}; git commit -qm {0}"
    lost, kept = (repository.run(daemon, commit.format(name)) for name in ("lost", "kept"))
    squashed = repository.run(daemon, commit.format("squashed"))
    repository.sfactl(daemon, "land", squashed.id, "--squash", cwd=repository.path)
    told = repository.sfactl(daemon, "prune", "--worktrees")
    assert sorted(line.strip() for line in told.splitlines() if "not landed" in line) == sorted(
        f"kept {run.branch}, which has commits that have not landed: sfactl land {run.id}"
        for run in (lost, kept)
    )
    repository.sfactl(daemon, "land", kept.id, cwd=repository.path)
    told = repository.sfactl(daemon, "prune", "--keep", "0")  # nothing else knows of it after this
    assert [line.strip() for line in told.splitlines() if "not landed" in line] == [
        f"kept {lost.branch}, which has commits that have not landed: git merge {lost.branch}"
    ]
    assert repository.git("branch", "--list", lost.branch or "") != ""


@pytest.mark.parametrize("names", [("parent", "child"), ("a", "z")])
def test_commits_that_only_branches_of_runs_have_are_told_and_stay(
    daemon: Daemon, repository: Repository, names: tuple[str, str]
) -> None:
    """The branch of a child begins with the commits of its parent, and may have none of its own."""
    commit = "echo mine > mine; git add mine; git commit -qm mine"
    parent = repository.run(daemon, commit, name=names[0])
    child = repository.run(daemon, "true", name=names[1], cwd=os.fsencode(parent.cwd))
    assert child.branch != parent.branch
    told = repository.sfactl(daemon, "why", parent.id, child.id)
    assert f"{parent.id}: 1 commit to land: sfactl land {parent.id}" in told
    assert f"land {child.id}" not in told
    repository.sfactl(daemon, "land", child.id, "--onto", parent.branch or "", cwd=repository.path)
    said = repository.sfactl(daemon, "prune", "--keep", "0")
    assert f"kept the worktree {parent.worktree}" in said
    said = repository.sfactl(daemon, "prune", "--worktrees")
    assert f"kept {parent.branch}, which has commits that have not landed" in said
    branches = repository.git("branch", "--format=%(refname:short)", "--contains", ":/mine")
    assert branches.split() == [parent.branch]


def test_what_a_child_has_landed_on_its_parent_is_told_once(
    daemon: Daemon, repository: Repository
) -> None:
    parent = repository.run(daemon, "true", name="parent")
    child = repository.run(daemon, "echo c > c", name="child", cwd=os.fsencode(parent.cwd))
    repository.sfactl(daemon, "land", child.id, "--onto", parent.branch or "", cwd=repository.path)
    told = repository.sfactl(daemon, "why", parent.id, child.id)
    assert f"{parent.id}: 1 commit to land: sfactl land {parent.id}" in told
    assert f"land {child.id}" not in told
    repository.sfactl(daemon, "land", parent.id, cwd=repository.path)
    assert "sfactl land" not in repository.sfactl(daemon, "why", parent.id, child.id)
    said = repository.sfactl(daemon, "prune", "--keep", "0")
    assert "removed 2 worktrees" in said
    assert repository.git("branch", "--list", "sfad/*") == ""


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_worktree_in_which_a_run_lives_stays(
    start: Start, repository: Repository, by_hand: bool
) -> None:
    """A detached child outlives its parent, and a person may start a run in any directory."""
    daemon = start(config="[guard]\nallow_detach = true\n")
    env = [os.fsencode(f"{k}={v}") for k, v in (daemon.env | repository.env).items()]
    env.append(b"PYTHONPATH=" + os.fsencode(os.getcwd()))
    spawn_child = [sys.executable, "-m", "sfactl", "spawn", "--detach", "--", "sleep", "300"]
    words = ["true"] if by_hand else spawn_child
    with daemon.client() as client:
        run = ended(client, started(client, words, **repository.options(env=env)).id)
        assert run.exit_code == 0, daemon.errors(run.id)
        if by_hand:
            there = os.fsencode(run.worktree or "")
            other = started(client, ["sleep", "300"], cwd=there, env=env).id
        else:
            other = daemon.output(run.id).strip()
        for options in (["--worktrees"], ["--keep", "0"], ["--keep", "0", "--worktrees", "--yes"]):
            said = repository.sfactl(daemon, "prune", *options)
            kept = f"kept the worktree {run.worktree} (branch {run.branch}): run {other} works in"
            assert kept in said
            assert "removes them" not in said
            assert os.path.isdir(run.worktree or "")
        stopped(client, other)
    assert "removed 1 worktree" in repository.sfactl(daemon, "prune", "--worktrees")


def test_a_run_that_begins_while_prune_looks_keeps_its_worktree(
    daemon: Daemon, repository: Repository
) -> None:
    """It stands where prune has asked the daemon already, and waits for the record."""
    run = repository.run(daemon, "echo two > file")
    record = worktrees.read_record(run.worktree or "")
    assert record is not None
    env = daemon.env | repository.env
    words = [sys.executable, "-m", "sfactl", "prune", "--worktrees", "--json"]
    with worktrees.claimed(record), daemon.client() as client:
        pruned = subprocess.Popen(words, env=env, stdout=subprocess.PIPE)
        place = f"FLOCK  ADVISORY  WRITE {pruned.pid} "
        wait_until(lambda: f"-> {place}" in Path("/proc/locks").read_text(), "prune waits")
        options = repository.options(Worktree(of=run.id))
        other = started(client, ["sleep", "300"], **options).id
        record.run = other
        record.save()
    told = json.loads(pruned.communicate()[0])
    assert (told["worktrees_removed"], pruned.returncode) == ([], 0)
    with daemon.client() as client:
        wait_until(
            lambda: client.call(m.Info(id=client.next_id(), run=other), m.RunReply).run.pid,
            "it runs",
        )
        assert os.path.isdir(record.path)
        stopped(client, other)


def test_a_run_waits_while_its_worktree_is_removed(daemon: Daemon, repository: Repository) -> None:
    run = repository.run(daemon, "echo two > two; git add two; git commit -qm two")
    record = worktrees.read_record(run.worktree or "")
    assert record is not None
    with worktrees.claimed(record), daemon.client() as client:
        other = started(client, ["cat", "two"], **repository.options(Worktree(of=run.id))).id
        wait_until(lambda: "-> FLOCK" in Path("/proc/locks").read_text(), "its first step waits")
        worktrees.remove(record, repository.env, branch=False)
    with daemon.client() as client:
        info = ended(client, other)
    assert (info.exit_code, daemon.output(other)) == (0, "two\n"), daemon.errors(other)


def test_a_worktree_without_its_repository_is_removed_only_if_the_person_says_so(
    daemon: Daemon, tmp_path: Path
) -> None:
    repository = Repository(tmp_path / "gone")
    run = repository.run(daemon, "echo two > file")
    shutil.rmtree(repository.path)
    told = repository.sfactl(daemon, "prune", "--worktrees")
    assert f"kept the worktree {run.worktree}" in told
    told = repository.sfactl(daemon, "prune", "--worktrees", "--yes")
    assert "removed 1 worktree" in told
    assert not os.path.lexists(run.worktree or "")


def test_a_record_that_cannot_be_saved_leaves_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "w-1")
    record = Record(path=path, repository="/", branch="sfad/w", start="", run="a1", socket="/")
    os.mkdir(record.file)
    with pytest.raises(OSError, match="directory"):
        record.save()
    assert os.listdir(tmp_path) == ["w-1.json"]


def test_prune_of_a_run_removes_the_ref_of_what_has_landed(
    daemon: Daemon, repository: Repository
) -> None:
    run = repository.run(daemon, "echo kept > notes")
    repository.sfactl(daemon, "prune", "--worktrees")
    assert repository.git("for-each-ref", "refs/sfad") != ""
    repository.sfactl(daemon, "land", run.id, cwd=repository.path)
    repository.sfactl(daemon, "prune", "--keep", "0")
    assert repository.git("for-each-ref", "refs/sfad") == ""


def test_prune_removes_what_no_commit_can_keep_only_if_the_person_says_so(
    daemon: Daemon, repository: Repository
) -> None:
    nested = "git init -q nested; echo x > nested/x; echo y > y"
    for words, answer in ((("--yes",), ""), ((), "n\n"), ((), "y\n")):
        run = repository.run(daemon, nested)
        stays = os.path.join(run.cwd, "nested/x")
        told = repository.sfactl(daemon, "prune", "--worktrees")
        assert "newline/nested/ is a git repository of its own" in told
        assert os.path.exists(stays)
        if words:
            told = repository.sfactl(daemon, "prune", "--worktrees", *words)
            assert f"with its changes: {run.worktree}" in told
        else:
            told = at_a_terminal(repository, daemon, answer, "prune", "--worktrees")
            assert "Remove it, with what is in it? [y/N]" in told
        assert os.path.exists(stays) == (answer == "n\n")


def at_a_terminal(repository: Repository, daemon: Daemon, answer: str, *words: str) -> str:
    """Return what sfactl prints at a terminal where a person answers its question."""
    own, other = pty.openpty()
    command = [sys.executable, "-m", "sfactl", *words]
    with subprocess.Popen(
        command, env=daemon.env | repository.env, stdin=other, stdout=other, stderr=other
    ) as process:
        os.close(other)
        said = b""
        with suppress(OSError):  # EIO at its end
            while piece := os.read(own, 4096):
                said += piece
                if said.endswith(b"[y/N] "):
                    os.write(own, answer.encode())
        process.wait()
    os.close(own)
    assert process.returncode == 0, said
    return said.decode()


# ---- Isolated runs


ESCAPES = """
echo mine > file; git add file; git commit -qm mine; git log --oneline | wc -l
for path in "$REPOSITORY/x" "$REPOSITORY/.git/config" "$REPOSITORY/.git/hooks/post-commit" \\
  "$REPOSITORY/.git/refs/heads/main" "$REPOSITORY/.git/packed-refs" \\
  "$REPOSITORY/.git/worktrees/x" "$REPOSITORY/.git/index" "$WORKTREES/x.json"
do (echo evil >> "$path") 2>/dev/null && echo "wrote $path"; done
git update-ref refs/heads/main HEAD 2>/dev/null && echo moved main
evil='[core]\\n\\tfsmonitor = touch "%s/escaped"\\n\\thooksPath = .\\n'
printf "$evil" "$REPOSITORY" > "$(git rev-parse --git-dir)/config.worktree"
mkdir nested; cd nested; git init -q .; git config core.fsmonitor "touch $REPOSITORY/escaped"
echo x > x; git add x; git commit -qm x
cp -r .git/config "$(cd .. && git rev-parse --git-dir)/config"
"""


def run_start(run: RunInfo) -> str:
    record = worktrees.read_record(run.worktree or "")
    assert record is not None
    return record.start


@pytest.mark.needs("bwrap")
def test_an_isolated_run_commits_in_its_worktree_and_changes_nothing_else(
    daemon: Daemon, repository: Repository
) -> None:
    repository.git("config", "extensions.worktreeConfig", "true")
    before, options = repository.state(), repository.options(isolation=Isolation())
    options["env"] += [
        b"REPOSITORY=" + os.fsencode(repository.path), b"GIT_AUTHOR_NAME=n",
        b"GIT_COMMITTER_NAME=n",
        b"WORKTREES=" + os.fsencode(repository.home / ".local/share/sfad/worktrees"),
        b"EMAIL=n@example.com",
    ]  # fmt: skip
    with daemon.client() as client:
        run = ended(client, started(client, ["sh", "-c", ESCAPES], **options).id)
    commits, *wrote = daemon.output(run.id).splitlines()
    assert commits == "2", daemon.errors(run.id)
    # into empty directories of the sandbox's own
    assert wrote == [
        f"wrote {repository.path}/x",
        f"wrote {repository.home}/.local/share/sfad/worktrees/x.json",
    ]
    assert not any(os.path.exists(line.removeprefix("wrote ")) for line in wrote)
    assert repository.git("rev-parse", "main").strip() == run_start(run)
    assert repository.git("log", "--format=%s", run.branch or "").split() == ["mine", "first"]
    repository.git("config", "--unset", "extensions.worktreeConfig")
    assert repository.state()[2] == before[2]
    repository.git("config", "extensions.worktreeConfig", "true")
    assert "+mine" in repository.diff(daemon, run)
    told = repository.sfactl(daemon, "prune", "--worktrees", "--dry-run")
    assert "is a git repository of its own" in told
    assert not (repository.path / "escaped").exists(), "nothing that it wrote was executed outside"
    refusal = repository.refused(daemon, Worktree(branch="work"), isolation=Isolation())
    assert "--worktree=work/work" in refusal


# ---- One daemon for all users


@needs_root
def test_git_is_executed_as_the_user_of_the_run() -> None:
    config = '[access]\nusers = "all"\n'
    with (
        open_directory() as top,
        running(_made(top / "d"), config=config, wrap=readable_by_all(top)) as daemon,
    ):
        place = top / "place"
        place.mkdir()
        os.chown(place, FIRST, FIRST)

        def submit() -> tuple[Repository, RunInfo]:
            repository = Repository(place)
            hook = repository.path / ".git" / "hooks" / "post-checkout"
            hook.write_text('#!/bin/sh\nid -u > "$HOME/who"\n')
            hook.chmod(0o755)
            return repository, repository.run(daemon, "echo two > file; id -u")

        repository, run = as_user(FIRST, submit)
        assert (
            daemon.output(run.id).split()
            == (repository.home / "who").read_text().split()
            == [str(FIRST)]
        )
        assert os.stat(run.worktree or "").st_uid == FIRST
        assert "no run has the id" in as_user(SECOND, lambda: _refusal_of_another(daemon, run, top))


def _made(directory: Path) -> Path:
    directory.mkdir(mode=0o755)
    return directory


def _refusal_of_another(daemon: Daemon, run: RunInfo, top: Path) -> str:
    with daemon.client() as client:
        reply = spawn(
            client,
            ["true"],
            cwd=os.fsencode(top),
            env=[b"PATH=/usr/bin:/bin"],
            worktree=Worktree(of=run.id),
        )
    return getattr(reply, "message", "") or str(reply)


# ---- What git is told when it only looks


def kept_of(repository: Repository, daemon: Daemon) -> list[tuple[str, str]]:
    """Return the runs whose worktrees `prune` keeps, and why."""
    told = json.loads(repository.sfactl(daemon, "prune", "--keep", "0", "--dry-run", "--json"))
    return [(each["run"], each["why"]) for each in told["worktrees_kept"]]


ISOLATIONS = [None, pytest.param(Isolation(), marks=pytest.mark.needs("bwrap"))]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_monitor_of_files_hides_no_change(
    daemon: Daemon, repository: Repository, isolation: Isolation | None
) -> None:
    """The monitor of a person, too, may be behind, as one is that was killed."""
    monitor = repository.path / ".git" / "hooks" / "monitor"
    monitor.write_text("#!/bin/sh\nprintf 'token\\0'\n")
    monitor.chmod(0o755)
    repository.git("config", "core.fsmonitor", str(monitor))
    script = "git update-index --fsmonitor; git status --short; echo changed > file"
    run = repository.run(daemon, script, isolation=isolation)
    assert repository.git("status", "--short", cwd=Path(run.worktree or "")) == "" or isolation
    assert "+changed" in repository.diff(daemon, run)
    assert kept_of(repository, daemon) == [(run.id, "it has changes that are not committed")]


def test_a_look_executes_no_hook(daemon: Daemon, repository: Repository) -> None:
    run = repository.run(daemon, "echo changed > file")
    hook = repository.path / ".git" / "hooks" / "post-index-change"
    hook.write_text('#!/bin/sh\ntouch "$HOME/hook"\n')
    hook.chmod(0o755)
    assert "+changed" in repository.diff(daemon, run)
    repository.sfactl(daemon, "prune", "--worktrees", "--dry-run")
    repository.sfactl(daemon, "rerun", run.id)
    assert not (repository.home / "hook").exists()


def test_a_change_in_a_sub_module_counts_whatever_gitmodules_says(
    daemon: Daemon, tmp_path: Path
) -> None:
    repository = Repository(tmp_path, directory="sub")
    other = Repository(tmp_path / "other", directory="sub")
    repository.git("submodule", "add", "-q", str(other.path), "module")
    repository.git("config", "-f", ".gitmodules", "submodule.module.ignore", "all")
    repository.commit("module")
    run = repository.run(daemon, "cd ..; git submodule update -q --init; echo y > module/y")
    assert run.exit_code == 0, daemon.errors(run.id)
    assert "-dirty" in repository.diff(daemon, run)
    assert kept_of(repository, daemon) == [(run.id, "it has changes that are not committed")]


def test_the_variables_of_one_repository_are_those_of_git() -> None:
    said = subprocess.run(
        ["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True, check=True
    )
    assert set(said.stdout.split()) - {*SETTINGS} <= set(LOCAL)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("name", LOCAL)
def test_a_variable_of_another_repository_leads_git_nowhere(
    daemon: Daemon, repository: Repository, name: str, isolation: Isolation | None
) -> None:
    """As a person has them in a shell that a hook of git has started."""
    value = str(repository.home / "elsewhere")
    script = "echo mine > file; git add file; git commit -qm mine --allow-empty; echo more >> file"
    run = repository.run(
        daemon,
        script,
        isolation=isolation,
        env=[*repository.options()["env"], f"{name}={value}".encode()],
    )
    assert run.exit_code == 0, daemon.errors(run.id)
    shown = repository.diff(daemon, run)
    assert "+more" in shown
    told = repository.sfactl(daemon, "prune", "--worktrees", "--dry-run")
    repository.env[name] = value
    try:
        assert repository.diff(daemon, run) == shown
        assert repository.sfactl(daemon, "prune", "--worktrees", "--dry-run") == told
        again = repository.sfactl(daemon, "rerun", run.id).split()[0]
        with daemon.client() as client:
            assert ended(client, again).exit_code == 0, daemon.errors(again)
        repository.sfactl(daemon, "prune", "--worktrees")
    finally:
        del repository.env[name]
    assert not os.path.lexists(run.worktree or "")
    assert not os.path.lexists(value)
    assert repository.git("log", "--format=%s", run.branch or "").split()[-1] == "first"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_diff_that_is_ended_leaves_nothing(daemon: Daemon, tmp_path: Path, number: int) -> None:
    repository = Repository(tmp_path)
    run = repository.run(daemon, "echo two >file")
    temporary, gate = tmp_path / "temporary", tmp_path / "gate"
    temporary.mkdir()
    os.mkfifo(gate)
    # git calls it when it looks into the worktree, and waits with it
    repository.git("config", "filter.slow.clean", f"echo >{gate}; exec sleep 1000")
    (repository.path / ".git/info/attributes").write_text("* filter=slow\n")
    with subprocess.Popen(
        [sys.executable, "-m", "sfactl", "diff", run.id],
        env=daemon.env | repository.env | {"TMPDIR": str(temporary)},
        start_new_session=True,
    ) as client:
        gate.read_text()
        assert [*temporary.iterdir()]
        client.send_signal(number)
        assert client.wait(60) == -number
        os.killpg(client.pid, signal.SIGKILL)  # the filter, which outlives git
    assert [*temporary.iterdir()] == []


def test_a_run_that_is_stopped_before_its_command_leaves_nothing(
    daemon: Daemon, tmp_path: Path
) -> None:
    repository = Repository(tmp_path)
    first = repository.run(daemon, "echo two >file")
    temporary, gate = tmp_path / "temporary", tmp_path / "gate"
    temporary.mkdir()
    os.mkfifo(gate)
    repository.git("config", "filter.slow.clean", f"echo >{gate}; exec sleep 1000")
    (repository.path / ".git/info/attributes").write_text("* filter=slow\n")
    options = repository.options(Worktree(of=first.id))
    options["env"].append(os.fsencode(f"TMPDIR={temporary}"))
    with daemon.client() as client:
        run = started(client, ["true"], **options).id
        gate.read_text()
        assert [*temporary.iterdir()]
        client.call(m.Stop(id=0, runs=[run]), m.Stopped)
    assert [*temporary.iterdir()] == []
