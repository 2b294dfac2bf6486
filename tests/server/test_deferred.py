"""Requests whose answer comes later, from work beside the loop."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock, patch

from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode
from sfad.start import prepare
from tests.loop.shell import ANN
from tests.server.test_looks import served


async def test_a_spawn_that_has_waited_is_answered_whatever_goes_wrong(tmp_path: Path) -> None:
    """A program that is known to call models: its user's settings are read first."""
    spawn = m.Spawn(id=7, argv=[b"claude"], cwd=b"/", env=[b"HOME=/", b"KEY=geheim"], gateway=True)
    async with served(tmp_path, [ANN]) as (_, (client,)):
        with patch.object(prepare, "asked_of", Mock(side_effect=TypeError("a bug"))):
            client.send(spawn)
            (answer,) = await client.replies(1)
    assert isinstance(answer, m.Error)
    assert (answer.id, answer.code) == (7, ErrorCode.INTERNAL)
    logged = (tmp_path / "log").read_text()
    way = ["in spawn", "in prepare", "p.asked, p.program", "TypeError: a bug"]
    assert [step for step in way if step not in logged] == []
    assert "geheim" not in logged, "the log is no place for what is in an environment"
