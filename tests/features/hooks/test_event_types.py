"""The types that patterns are compared with are those that the daemon sends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sfad.config import ConfigError, load
from sfad.protocol.event_types import EVENT_TYPES, EventType
from sfad.protocol.types import Status
from tests.docs.pages import ROOT, text_of

SENT_WITHOUT_TABLE = re.compile(
    r'\b(?:_?tell|tell_of_\w+|_?publish)\(\s*"[a-z]+_\w+"|partial\(publish, "|Event\(\s*type="'
)


def test_every_type_is_sent_and_documented() -> None:
    text = "".join(file.read_text() for file in (ROOT / "sfad").rglob("*.py"))
    assert SENT_WITHOUT_TABLE.findall(text) == []
    ends = {f"run_{status}" for status in Status if status.terminal}
    assert [
        each for each in EventType if f"EventType.{each.name}" not in text and each not in ends
    ] == []
    rows = "".join(
        re.findall(r"^\| .*", text_of("protocol.md") + text_of("hooks.md"), re.MULTILINE)
    )
    assert not [each for each in EVENT_TYPES if f"`{each}`" not in rows]


@pytest.mark.parametrize("pattern", ["run_fail", "alrt_*", "hook_failed", "hook_*", "RUN_*"])
def test_a_pattern_that_can_match_nothing_is_an_error(tmp_path: Path, pattern: str) -> None:
    file = tmp_path / "sfad.toml"
    file.write_text(
        f'[[hooks]]\nname = "mail"\non = ["run_failed", "{pattern}"]\ncommand = ["true"]\n'
    )
    with pytest.raises(ConfigError) as error:
        load([file])
    assert f"hooks.mail.on = ['run_failed', '{pattern}']: allowed is" in str(error.value)
    assert f"'{pattern}' matches none of run_accepted, " in str(error.value)
