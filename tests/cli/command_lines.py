"""What a command line of `sfactl spawn` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

from sfactl.app import carry_out
from sfactl.commands import spawn
from sfactl.options.spawn import SpawnOptions


def spawn_options_of(words: Sequence[str]) -> SpawnOptions:
    """Return the options, and the command, that the words after `sfactl spawn` give. Raise
    `UsageError`."""
    seen: list[SpawnOptions] = []

    def start(wanted: SpawnOptions) -> int:
        seen.append(wanted)
        return 0

    with patch.object(spawn, "start", start):
        carry_out(["spawn", *words])
    return seen[0]
