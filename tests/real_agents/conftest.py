"""Fixtures: the real agents, and a desk for them."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import Start
from tests.real_agents.clis import CLIS, Cli, environment, install
from tests.real_agents.desk import Desk
from tests.real_agents.model import serving
from tests.real_agents.script import Reply

_KEPT = (
    "LANG",
    "LC_ALL",
    "PYTHONPATH",
    "TESTS_OF_SFAD",
    "SFAD_SOCKET",
    "SFAD_STATE_DIR",
    "SFAD_CONFIG",
)
"""Variables of the environment that agents get. They must not see the keys and settings of the
developer."""

MakeDesk = Callable[..., Desk]


@pytest.fixture(scope="session")
def commands() -> Path:
    """Return the directory of the real agents."""
    if os.environ.get("SFAD_TEST_AGENTS") not in {"1", "all"}:
        pytest.skip(
            "real agents are tried with SFAD_TEST_AGENTS=1: "
            "it fetches some 550 MB from npm, 1.2 GB on disk"
        )
    return install()


@pytest.fixture(params=["claude", "codex"])
def cli(request: pytest.FixtureRequest) -> Cli:
    """Two agents, because what the daemon does to processes is the same for all."""
    return CLIS[request.param]


@pytest.fixture(params=CLIS)
def any_cli(request: pytest.FixtureRequest) -> Cli:
    """Each agent."""
    return CLIS[request.param]


@pytest.fixture
def desk(commands: Path, start: Start, tmp_path: Path) -> Iterator[MakeDesk]:
    """Makes the desk: `desk(config=..., mode=..., claude=[...], codex=[...])`: a script for each
    agent that will be started. The gateway is off, unless the config says something about it, so
    that what meters tell is seen. `{model}` in the config is the address of the model."""
    with ExitStack() as stack:

        def make(*, config: str = "", mode: str = "auto", **scripts: Iterable[Reply]) -> Desk:
            model = stack.enter_context(serving(scripts))
            without = "" if "[gateway]" in config else "\n[gateway]\nenabled = false\n"
            daemon = start(config=config.replace("{model}", model.url) + without, mode=mode)
            kept = {key: value for key, value in daemon.env.items() if key in _KEPT}
            path = os.pathsep.join(
                [sysconfig.get_path("scripts"), str(commands), os.environ["PATH"]]
            )
            return Desk(
                daemon, model, kept | {"PATH": path} | environment(tmp_path / "home", model.url)
            )

        yield make
        shutil.rmtree(tmp_path / "home", ignore_errors=True)  # Copilot CLI's part of it has 190 MB
