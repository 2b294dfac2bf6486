"""A night: two agents in worktrees of one repository, and a person who has a telephone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE, CODEX
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.script import Say, Shell
from tests.web.browser.conftest import TELEPHONE, browser
from tests.web.console import Console

__all__ = ["browser"]

pytestmark = pytest.mark.needs("chromium", "git")


def test_the_work_of_a_night_is_landed_from_a_telephone(
    desk: MakeDesk, browser: Browser, tmp_path: Path
) -> None:
    """One agent commits and asks for more on its way; the other leaves its work uncommitted, with a
    file that git does not know and one that it has deleted."""
    at = desk(
        claude=[
            Shell("echo parsed > parser.txt && git add parser.txt && git commit -qm parser"),
            Shell("echo more >> parser.txt && git commit -qam more"),
            Shell("git log --oneline"),
            Say("The parser is done."),
        ],
        codex=[Shell("echo written > writer.txt; rm old.txt"), Say("The writer is done.")],
    )
    repository = tmp_path / "repository"
    repository.mkdir()

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=repository, env=at.env, capture_output=True, text=True, check=True
        )
        return done.stdout

    git("init", "-q", "-b", "main")
    git("config", "user.name", "n")
    git("config", "user.email", "n@example.com")
    (repository / "old.txt").write_text("old\n")
    git("add", ".")
    git("commit", "-qm", "first")

    runs = {}
    for name, cli, more in (
        ("parser", CLAUDE, ["--limit", "turns=1:request_increase"]),
        ("writer", CODEX, []),
    ):
        done = at.sfactl(
            "spawn", "--cwd", str(repository), "--worktree", "--name", name, "--timeout", "10m",
            *more, *cli.by_name,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        runs[name] = done.stdout.strip()

    console = Console(at.daemon, env={"PATH": at.env["PATH"], "HOME": at.env["HOME"]})
    context = browser.new_context(
        viewport=TELEPHONE, has_touch=True, is_mobile=True, base_url=console.origin
    )
    context.set_default_timeout(120_000)
    page = context.new_page()
    try:
        page.goto(console.link)
        page.goto("/")
        asking = page.locator(f'[data-run="{runs["parser"]}"]')
        asking.get_by_role("button", name="Approve").tap()
        expect(asking).to_contain_text("completed", timeout=120_000)
        for name, run in runs.items():
            wait_until(lambda run=run: at.json("info", run)["ended_at"], f"{name} has ended")  # type: ignore[misc]
            page.goto(f"/runs/{run}")
            page.get_by_role("button", name="Land").tap()
            page.get_by_role("dialog").get_by_role("button", name="Land").tap()
            expect(page.get_by_text(f"{run} landed on 'main'")).to_be_visible()
    finally:
        context.close()
        assert console.end() == 0

    assert (repository / "parser.txt").read_text() == "parsed\nmore\n"
    assert (repository / "writer.txt").read_text() == "written\n"
    assert not (repository / "old.txt").exists()
    assert git("status", "--porcelain") == ""
    assert at.sfactl("prune", "--worktrees", "--yes").returncode == 0
    assert len(git("worktree", "list").splitlines()) == 1
