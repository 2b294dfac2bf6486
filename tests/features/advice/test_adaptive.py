"""`limits.adaptive`: what is learnt of a user's type, or name, bounds the next runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sfad.config import ConfigError, understand
from sfad.features.advice.adviser import key_of, learnt
from sfad.features.advice.feature import AdviceConfig
from sfad.protocol.types import LimitKind, Status
from tests.conftest import Start
from tests.e2e.agents import limit
from tests.harness import ended, started, wait_until


def test_the_ledger_advises_and_adaptive_limits_follow(start: Start) -> None:
    daemon = start(config="[limits]\nadaptive = true\n[quotas]\nspawns_per_hour = 10000")
    quick = [
        sys.executable,
        "-c",
        (
            'print(\'{"type": "usage", "turns": 4, "messages": 1, "input_tokens": 9, '
            '"output_tokens": '
            "1}')"
        ),
    ]
    with daemon.client() as client:
        for run in [started(client, quick, meter="jsonl", run_type="qa").id for _ in range(25)]:
            assert ended(client, run).status is Status.COMPLETED

        def adapted() -> bool:
            run = started(client, quick, meter="jsonl", run_type="qa")
            shown = {
                each.kind.value: (each.threshold, each.source)
                for each in ended(client, run.id).limits
            }
            return shown["turns"] == (5, "limits.adaptive")

        wait_until(adapted, "a run with the limit that was learnt")
        found = daemon.sfactl("recommend", "--type", "qa", "--json")
        assert found.returncode == 0, found.stderr
        advised = {each["kind"]: each for each in json.loads(found.stdout)["advice"]}
        assert (advised["turns"]["p95"], advised["turns"]["suggested"]) == (4, 5)
        assert advised["turns"]["runs"] > 25
        asked = started(client, quick, meter="jsonl", run_type="qa", limits=[limit("turns", 30)])
        assert {each.source for each in asked.limits if each.kind.value == "turns"} == {
            "--limit turns"
        }
        ended(client, asked.id)


def test_its_key_stands_in_a_section_of_the_heart() -> None:
    file = Path("/etc/sfad.toml")
    config = understand([(file, b"[limits]\nadaptive = true\nmax_turns = 50")], file).config
    assert config.section("limits", AdviceConfig).adaptive
    assert config.limits.max_turns == 50
    assert not understand([], file).config.section("limits", AdviceConfig).adaptive
    with pytest.raises(ConfigError, match=r"limits\.adaptive = 'yes': allowed is true or false"):
        understand([(file, b"[limits]\nadaptive = 'yes'")], file)


def test_it_is_of_a_users_type_else_of_the_name() -> None:
    known = {
        key_of(1000, "qa", "a"): {LimitKind.TURNS: 12.0},
        key_of(1000, None, "a"): {LimitKind.TURNS: 13.0, LimitKind.TIME: 9.0},
    }

    def found(uid: int, run_type: str | None, name: str) -> list[tuple[str, float]]:
        return [(each.kind.value, each.threshold) for each in learnt(known, uid, run_type, name)]

    assert found(1000, "qa", "b") == [("turns", 12.0)]
    assert found(1000, None, "a") == [("turns", 13.0), ("time", 9.0)]
    assert found(1000, None, "qa") == found(1001, None, "a") == found(1000, "dev", "a") == []
