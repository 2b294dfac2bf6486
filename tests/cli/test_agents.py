"""Agents by their name: `sfactl run claude "…"`, `sfactl agents`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import World

CONFIG = """
[agents.reviewer]
command = ["claude", "{task}"]
description = "reviews a diff"
limits = ["turns=20"]
[limits]
max_turns = 200
"""
pytestmark = pytest.mark.parametrize("config", [CONFIG], scope="module")

STAND_IN = """#!/bin/sh
for word in "$@"; do echo "[$word]"; done
case "$*" in *nest*) exec $SFACTL run -q ${AGAIN:-claude} again;; esac
"""
"""In place of Claude Code, which costs money. Told to nest, it starts an agent as a model would."""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("agents"), CONFIG)
    programs = world.directory / "bin"
    programs.mkdir()
    (programs / "claude").write_text(STAND_IN)
    (programs / "claude").chmod(0o755)
    world.env["PATH"] = f"{programs}:{os.environ['PATH']}"
    return world
