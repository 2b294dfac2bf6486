"""The seam: the exercise of CONTRIBUTING.md, and the heart without each feature, in a copy of the
tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from sfad.features.listed import FEATURES, NAMES
from tests.tiers import variant

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIST = Path("sfad/features/listed.py")
VERBS = {"approvals": ("ask",), "session": ("mcp",)}
"""Verbs that are not called like their feature."""


class Copy:
    """A copy of the tree, with an interpreter that finds it, and else what this one finds."""

    def __init__(self, directory: Path) -> None:
        self.tree = directory / "tree"
        # what is compiled is copied too, except what another process is about to write
        for name in ("sfad", "sfactl", "tests"):
            shutil.copytree(ROOT / name, self.tree / name, ignore=shutil.ignore_patterns("*.pyc.*"))
        for name in ("pyproject.toml", "CONTRIBUTING.md", "README.md", "docs", "systemd"):
            (self.tree / name).symlink_to(ROOT / name)
        venv.create(directory / "venv", with_pip=False, symlinks=True)
        (site,) = (directory / "venv/lib").glob("python*/site-packages")
        (site / "tree.pth").write_text(f"{self.tree}\n{sysconfig.get_path('purelib')}\n")
        self.python = directory / "venv/bin/python"

    def list_also(self, feature: str) -> None:
        text = (self.tree / LIST).read_text()
        (self.tree / LIST).write_text(text.replace("\n)\n", f'\n    "{feature}",\n)\n', 1))

    def delete(self, feature: str) -> None:
        """Delete a feature: its folder, its tests, its lines, and its verbs with what these use."""
        shutil.rmtree(self.tree / "sfad/features" / feature)
        shutil.rmtree(self.tree / "tests/features" / feature, ignore_errors=True)
        shutil.rmtree(self.tree / "sfactl/commands" / feature, ignore_errors=True)
        lines = (self.tree / LIST).read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f'    "{feature}",')]
        assert len(lines) - len(kept) == 1
        (self.tree / LIST).write_text("".join(kept))
        for module in (self.tree / "sfactl").rglob("*.py"):
            verb = module.parent.name == "commands" and module.stem in (
                feature,
                *VERBS.get(feature, ()),
            )
            if f"from sfad.features.{feature}" in module.read_text() or verb:
                module.unlink()

    def pytest(self, *words: str) -> None:
        env = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
        done = subprocess.run(
            [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
            cwd=self.tree,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_the_exercise(copy: Copy) -> None:
    blocks = dict(BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text()))
    assert len(blocks) == 5
    for name, text in blocks.items():
        (copy.tree / name).parent.mkdir(exist_ok=True)
        (copy.tree / name).write_text(text)
    for folder in ("sfad", "tests"):
        (copy.tree / folder / "features/sundays/__init__.py").write_text('"""Days of rest."""\n')
    copy.list_also("sundays")
    copy.pytest("tests/features/sundays")
    lines = sum(
        bool(line.strip())
        for name, text in blocks.items()
        if not name.startswith("tests/")
        for line in text.splitlines()
    )
    assert lines < 80


@variant
@pytest.mark.parametrize("feature", NAMES)
def test_a_daemon_without_a_feature(copy: Copy, feature: str) -> None:
    copy.delete(feature)
    copy.pytest("--tier", "fast", "tests/e2e/test_access.py")


def test_a_client_without_worktrees(copy: Copy) -> None:
    """Its verbs are gone; others that look at what a run has left find nothing to look at."""
    copy.delete("worktrees")
    modules = (
        "sfactl.commands.prune, sfactl.worktrees.shipping, sfactl.top.app, sfactl.showing.waiting"
    )
    left = (
        "list(sfactl.showing.waiting.of_unlanded(None, None)), sfactl.worktrees.shipping._led('/')"
    )
    for words in (
        ["-c", f"import {modules}, sfactl.web.actions; print({left})"],
        ["-m", "sfactl", "--help"],
    ):
        done = subprocess.run(
            [copy.python, *words], cwd=copy.tree, capture_output=True, text=True, check=True
        )
        assert " land " not in done.stdout
    assert "prune" in done.stdout


@variant
def test_the_heart_alone_passes_its_tests(copy: Copy) -> None:
    for feature in NAMES:
        copy.delete(feature)
    copy.pytest(
        "tests/core", "tests/loop", "tests/server", "tests/test_config.py", "tests/test_imports.py"
    )


def test_a_daemon_that_no_config_asks_for_features_loads_declarations(tmp_path: Path) -> None:
    """Nor for a plain run. And the gateway, which runs use where nobody says otherwise; and shims:
    whether a person has installed some is seen by a look at their directory alone."""
    state, told = tmp_path / "state", tmp_path / "imports"
    words = ["-m", "sfad", "serve", "--ready-fd", "1", "--state-dir", str(state)]
    words += ["--socket", str(tmp_path / "s"), "--config", "/dev/null"]
    with open(told, "wb") as file:
        daemon = subprocess.Popen(
            [sys.executable, "-X", "importtime", *words], stdout=subprocess.PIPE, stderr=file
        )
        assert daemon.stdout is not None
        try:
            assert daemon.stdout.readline() == b"ready\n"
            words = [sys.executable, "-m", "sfactl", "run", "--socket", str(tmp_path / "s")]
            subprocess.run([*words, "--", "true"], check=True, timeout=60)
        finally:
            daemon.terminate()
            daemon.wait()
            daemon.stdout.close()
    lines = told.read_text().splitlines()
    loaded = {line.rpartition("|")[2].strip() for line in lines if "import time:" in line}
    declared = {f"sfad.features.{name}{module}" for name in NAMES for module in ("", ".feature")}
    declared |= {"sfad.features", "sfad.features.listed"}
    declared |= {kind.__module__ for feature in FEATURES.values() for kind in feature.verbs}
    assert {name for name in loaded if name.startswith("sfad.features.metrics")}
    others = {name for name in loaded - declared if name.startswith("sfad.features")}
    assert {name.split(".")[2] for name in others} <= {"gateway", "shims"}


def test_a_file_that_is_no_verb_harms_no_other(copy: Copy) -> None:
    commands = copy.tree / "sfactl/commands"
    (commands / "list.py~").touch()
    (commands / "helper.py").write_text("def something() -> None: ...\n")
    (commands / "broken.py").write_text("def broken(:\n")
    shutil.rmtree(commands / "hooks")
    done = subprocess.run(
        [copy.python, "-m", "sfactl", "--help"], cwd=copy.tree, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    shown = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert {"list", "broken"} <= shown
    assert not shown & {"helper", "list.py~", "hooks"}
