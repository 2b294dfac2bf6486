"""Which programs can be hooks."""

from __future__ import annotations

import os
from pathlib import Path

from sfad.features.hooks.programs import program_trouble
from tests.harness import as_root
from tests.template import run_forked


def script(directory: Path, mode: int) -> str:
    file = directory / "hook"
    file.write_text("#!/bin/sh\n")
    file.chmod(mode)
    return str(file)


def test_a_program_must_exist_and_be_executable(tmp_path: Path) -> None:
    assert program_trouble(["sh", "-c", "true"]) is None
    assert program_trouble(["/nonexistent/hook"]) == "/nonexistent/hook does not exist"
    assert program_trouble(["no-such-hook"]) == "no-such-hook does not exist"
    file = script(tmp_path, 0o600)
    assert program_trouble([file]) == f"{file} is not executable"


@as_root
def test_root_executes_nothing_that_another_user_can_change(tmp_path: Path) -> None:
    assert program_trouble([script(tmp_path, 0o755)]) is None
    assert "is writable by others, and this daemon is root's" in (
        program_trouble([script(tmp_path, 0o777)]) or ""
    )
    assert "is writable by others" in (program_trouble(["sh", script(tmp_path, 0o777)]) or "")
    tmp_path.chmod(0o777)
    try:
        assert f"{tmp_path} is writable by others" in (
            program_trouble([script(tmp_path, 0o755)]) or ""
        )
    finally:
        tmp_path.chmod(0o700)


def test_check_config_tells(tmp_path: Path) -> None:
    file = tmp_path / "sfad.toml"
    file.write_text(
        '[[hooks]]\nname = "mail"\non = ["run_failed"]\ncommand = ["/nonexistent/hook"]\n'
    )
    done = run_forked("sfad", ["check-config", "--config", str(file)], os.environ, timeout=60)
    assert done.returncode == 2
    assert "hook 'mail': /nonexistent/hook does not exist" in done.stderr
    assert "hooks.mail.on" in done.stdout
