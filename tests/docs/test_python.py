"""Run the programs of python.md against a real daemon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Start
from tests.docs.pages import blocks, text_of
from tests.harness import PATIENCE

FRAMEWORKS = ("pydantic_ai", "agents", "langgraph", "smolagents", "crewai")
"""Tried by tests/frameworks."""
ROOT = Path(__file__).parents[2]
PROGRAMS = [
    block.text
    for block in blocks(text_of("python.md"))
    if block.language == "python" and not any(f"from {each}" in block.text for each in FRAMEWORKS)
]
SAYS = (
    ["run_accepted", "run_completed", "completed None reading\ndone\n"],
    ["cancelled"],
    ["completed"],
    ["completed\n0.2\ncompleted 0.0045"],
    ["patient has finished", "patient is completed because of None", "hasty is timeout because"],
)  # fmt: skip
"""What each prints."""


@pytest.mark.parametrize(("program", "says"), list(zip(PROGRAMS, SAYS, strict=True)))
def test_a_program(share: Start, program: str, says: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], env=share().env, capture_output=True, text=True,
        timeout=2 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in says:
        assert words in done.stdout


@pytest.mark.rest("runs mypy")
def test_the_programs_are_typed(tmp_path: Path) -> None:
    """mypy knows each name that they use of the client."""
    files = [tmp_path / f"program{number}.py" for number in range(len(PROGRAMS))]
    for file, program in zip(files, PROGRAMS, strict=True):
        file.write_text(program)
    words = ["--check-untyped-defs", "--cache-dir", str(tmp_path / "cache"), *map(str, files)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "/dev/null", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
