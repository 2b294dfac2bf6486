"""Run the programs of python.md against a real daemon."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import Start
from tests.docs.pages import blocks, text_of
from tests.harness import PATIENCE

PROGRAMS = [block.text for block in blocks(text_of("python.md")) if block.language == "python"]
SAYS = (
    ["run_accepted", "run_completed", "completed None reading\ndone\n"],
    ["cancelled"],
    ["completed"],
)  # fmt: skip
"""What each prints."""


@pytest.mark.parametrize(("program", "says"), zip(PROGRAMS, SAYS, strict=True), ids=range(3))
def test_a_program(share: Start, program: str, says: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], env=share().env, capture_output=True, text=True,
        timeout=2 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in says:
        assert words in done.stdout
