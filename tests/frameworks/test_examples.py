"""Each framework's example: of two agents in one process one hits its limit, and the other
finishes.

On two idle cores the frameworks take a minute to install. CrewAI, with 0.7 GB, takes another two:
it is tried with SFAD_TEST_FRAMEWORKS=all, in `make everything`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from sfactl import Daemon
from sfad.protocol.types import Status
from tests import harness
from tests.conftest import Start
from tests.docs.pages import blocks, text_of

from .provider import Provider, providing

ROOT = Path(__file__).parents[2]
CONFIG = """
[gateway]
enabled = true
[gateway.upstreams.openai]
url = "{url}"
api = "openai-chat"
free = false
"""
EXAMPLES = {
    name: block.text
    for block in blocks(text_of("python.md"))
    for name in ("pydantic_ai", "agents", "langgraph", "smolagents", "crewai")
    if block.language == "python" and f"from {name}" in block.text
}
TRIED = [
    name for name in EXAMPLES if name != "crewai" or os.environ.get("SFAD_TEST_FRAMEWORKS") == "all"
]
LONG = 1200.0
"""Seconds to install the frameworks."""


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what returns an interpreter that has this checkout with an extra of it."""

    @cache
    def python(extra: str) -> Path:
        place = tmp_path_factory.mktemp(extra)
        venv.create(place / "venv", symlinks=True)
        found = place / "venv/bin/python"
        words = [sys.executable, "-m", "pip", "--python", str(found), "install", "--quiet"]
        words += ["--no-compile", "--no-cache-dir", "--disable-pip-version-check"]
        # pip asks rustc for its version, and rustup's writes to the home then
        env = os.environ | {"HOME": str(place)}
        done = subprocess.run(
            [*words, f"{ROOT}[{extra}]"], env=env, capture_output=True, text=True, timeout=LONG,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return found

    return python


@pytest.fixture
def provider() -> Iterator[Provider]:
    with providing() as provider:
        yield provider


@pytest.fixture
def real(start: Start, provider: Provider) -> harness.Daemon:
    return start(config=CONFIG.format(url=provider.url))


def test_the_page_has_the_examples() -> None:
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize("name", TRIED)
def test_an_example(
    real: harness.Daemon,
    provider: Provider,
    python: Callable[[str], Path],
    name: str,
    tmp_path: Path,
) -> None:
    env = real.env | {"OPENAI_API_KEY": "none", "HOME": str(tmp_path)}
    env |= {"CREWAI_DISABLE_TELEMETRY": "true"}
    interpreter = python("crewai" if name == "crewai" else "frameworks")
    done = subprocess.run(
        [interpreter, "-c", EXAMPLES[name]], env=env, cwd=tmp_path, capture_output=True, text=True,
        timeout=LONG, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with Daemon(str(real.socket)) as daemon:
        ended = {run.name: run for run in daemon.runs()}
    assert set(ended) == {"thrifty", "thorough"}
    assert ended["thorough"].status is Status.COMPLETED, done.stdout + done.stderr
    reason = ended["thrifty"].reason
    assert reason is not None
    assert (ended["thrifty"].status, reason.kind, reason.limit_kind) == (
        Status.FAILED,
        "limit",
        "cost",
    )
    spent = [run.usage.cost_usd or 0 for run in ended.values()]
    assert sum(spent) == pytest.approx(provider.usd)
    assert (ended["thrifty"].usage.cost_usd or 0) <= 0.1
    assert json.dumps("thorough: It is fine.")[1:-1] in done.stdout
