"""Files of settings as the daemon reads them: what it may not read may have an address, so nothing
is assumed of it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from sfad.agents.setup_reader import LARGEST, Root, SetupReader, TreeSetups
from tests.harness import as_root
from tests.users import open_directory

FILES = {
    "claude": ".claude/settings.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "opencode": ".config/opencode/opencode.json",
    "qwen": ".qwen/settings.json",
    "aider": ".aider.conf.yml",
    "other": ".env",
}


async def found(home: Path, uid: int) -> TreeSetups:
    return await SetupReader().read(
        Root.of(uid, os.fsencode(home), [b"HOME=" + os.fsencode(home), b"GEMINI_API_KEY=k"])
    )


def spoil(file: Path, how: str) -> None:
    """Make it a file that the daemon does not read, and the user's programs may."""
    match how:
        case "too large":
            file.write_bytes(b" " * (LARGEST + 1))
        case "a pipe":
            os.mkfifo(file)
        case "a loop":
            file.symlink_to(file)
        case "another user's":
            file.write_text("{}")
            os.chown(file, 54321, 54321)
            file.chmod(0o644)


@pytest.mark.parametrize(
    "how", ["too large", "a pipe", "a loop", pytest.param("another user's", marks=as_root)]
)
@pytest.mark.parametrize("program", FILES)
async def test_a_program_whose_settings_cannot_be_read_goes_around_the_gateway(
    program: str, how: str
) -> None:
    uid = 12345 if how == "another user's" else os.geteuid()
    with open_directory() as home:
        before = (await found(home, uid)).of(program, (), {"HOME": str(home)})
        assert before.direct is None or "security.auth" in before.direct
        file = home / FILES[program]
        file.parent.mkdir(parents=True, exist_ok=True)
        spoil(file, how)
        spoiled = (await found(home, uid)).of(program, (), {"HOME": str(home)})
    assert f"{file} cannot be read" in str(spoiled.direct)


@pytest.mark.parametrize(
    "how",
    [
        "a directory",
        *(pytest.param(how, marks=as_root) for how in ("hidden", "in a hidden directory")),
    ],
)
async def test_what_no_program_of_the_user_can_read_changes_nothing(
    tmp_path: Path, how: str
) -> None:
    before = await found(tmp_path, 12345)
    for name in FILES.values():
        file = tmp_path / name
        if how == "a directory":
            file.mkdir(parents=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("{}")
            file.chmod(0o600 if how == "hidden" else 0o644)
    assert await found(tmp_path, 12345) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"permissions": {}, "env": {"A": "b"}}', None),
        (None, None),
        ('{"env": {"ANTHROPIC_BASE_URL": "https://own.example"}}', "ANTHROPIC_BASE_URL in"),
        ('{"env": {"CLAUDE_CODE_USE_BEDROCK": 1}}', "CLAUDE_CODE_USE_BEDROCK in"),
        ("{", "cannot be read as JSON"),
        (" " * (LARGEST + 1), "cannot be read"),
    ],
)
async def test_settings_that_a_command_of_claude_names(
    tmp_path: Path, content: str | None, words: str | None
) -> None:
    file = tmp_path / "settings"
    if content is not None:
        file.write_text(content)
    why = await SetupReader().why_around(os.geteuid(), str(file))
    assert (why is None) if words is None else (words in str(why))
    assert "another process" in str(await SetupReader().why_around(os.geteuid(), "/dev/fd/3"))


async def test_settings_that_are_not_utf8_can_be_saved(tmp_path: Path) -> None:
    home = tmp_path / os.fsdecode(b"h\xe9")
    file = home / FILES["claude"]
    file.parent.mkdir(parents=True)
    file.write_text('{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1/\\ud800"}}')
    env = [
        b"HOME=" + os.fsencode(home),
        b"SSL_CERT_FILE=/c\xe9",
        b"OPENAI_BASE_URL=http://127.0.0.1/\xe9",
    ]
    setups = await SetupReader().read(Root.of(os.geteuid(), os.fsencode(home), env))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(setups), type=TreeSetups) == setups
    assert setups.of("codex", (), {"HOME": str(home)}).direct is None
    assert setups.of("codex", (), {"HOME": "/elsewhere"}).direct is not None
