"""The file `sfactl` as pip installs it: it finds its interpreter, wherever that is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from sfad import __version__

ROOT = Path(__file__).parents[2]


def said(script: Path, **env: str) -> str:
    """Return what `sfactl --version` prints, with nothing but this checkout and its libraries to import."""
    packages = {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}"}
    return subprocess.run([script, "--version"], capture_output=True, text=True, check=True, env=os.environ | packages | env).stdout


def installed(directory: Path) -> Path:
    """Copy the script to where the interpreter of a virtual environment is, as pip does."""
    return Path(shutil.copy(ROOT / "bin" / "sfactl", directory))


@pytest.mark.parametrize("name", ["venv", "a space and ümlauts", "long" * 60])
def test_in_a_virtual_environment(tmp_path: Path, name: str) -> None:
    venv.create(tmp_path / name, symlinks=True)
    script = installed(tmp_path / name / "bin")
    link = tmp_path / "sfactl"
    link.symlink_to(script)
    # no other interpreter can be found
    assert said(script, PATH="/nonexistent") == f"sfactl {__version__}\n"
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "readlink").symlink_to(shutil.which("readlink") or "")
    assert said(link, PATH=str(tools)) == f"sfactl {__version__}\n"


def test_without_one_it_has_the_interpreter_of_sfad(tmp_path: Path) -> None:
    script = installed(tmp_path)
    (tmp_path / "sfad").write_text(f"#!{sys.executable} -s\n")
    assert said(script, PATH="/nonexistent") == f"sfactl {__version__}\n"


def test_else_it_has_that_of_the_path(tmp_path: Path) -> None:
    script = installed(tmp_path)
    (tmp_path / "sfad").write_text("#!/bin/sh\n")
    (tmp_path / "python3").symlink_to(sys.executable)
    assert said(script, PATH=str(tmp_path)) == f"sfactl {__version__}\n"
