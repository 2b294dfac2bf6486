"""The command line of `sfad`: the options of serving are read without typer, all others by
typer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sfad import __version__
from sfad.cli import app
from sfad.daemon import serving
from tests.template import run_forked
from tests.tiers import first


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], (None, None, None)),
        (["serve"], (None, None, None, None)),
        (["--socket", "s"], ("s", None, None)),
        (["--socket=a"], ("a", None, None)),
        (["--socket", "a", "serve"], ("a", None, None, None)),
        (["serve", "--state-dir", "d", "--ready-fd", "7", "--config", "c"], (None, "d", "c", 7)),
    ],
)
def test_serve_receives_its_options(
    arguments: list[str], options: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[object, ...]] = []
    monkeypatch.setattr(serving, "serve", lambda *given: served.append(given))
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert served == [options]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "--socket"], "requires an argument"),
        (["serve", "--ready-fd", "x"], "is not a valid int"),
        (["serve", "more"], "unexpected extra argument"),
        (["--sockt", "s"], "No such option"),
        (["bogus"], "No such command"),
    ],
)
def test_other_options_are_refused_with_a_message(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert says in done.stderr


@first(1)
@pytest.mark.parametrize("number", ["99", "9" * 30])
def test_a_ready_fd_that_is_not_open(number: str) -> None:
    done = run_forked("sfad", ["serve", "--ready-fd", number], os.environ, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"sfad: --ready-fd {number}: not an open descriptor: ")


@first(1)
@pytest.mark.parametrize(
    "arguments",
    [["--config", "/nowhere", "check-config"], ["check-config", "--config", "/nowhere"]],
)
def test_options_before_the_command_hold_for_it(arguments: list[str]) -> None:
    done = run_forked("sfad", arguments, os.environ, timeout=60)
    assert (done.returncode, done.stderr) == (2, "sfad: /nowhere: no such file\n")


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"sfad {__version__}\n"


def test_a_sweep_of_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    words = ["--state-dir", str(tmp_path / "nowhere"), "sweep"]
    done = run_forked("sfad", words, os.environ, timeout=60)
    assert done.returncode == 69
    assert f"{tmp_path}/nowhere is not a directory" in done.stderr


def test_a_sweep_leaves_a_damaged_spool_for_the_next_daemon_to_find(tmp_path: Path) -> None:
    journal = tmp_path / "spool" / "runs"
    journal.parent.mkdir()
    journal.write_bytes(b"damaged" * 100)
    done = run_forked("sfad", ["sweep", "--state-dir", str(tmp_path)], os.environ, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert {file.name: file.read_bytes() for file in journal.parent.iterdir()} == {
        "runs": b"damaged" * 100
    }


def test_serving_does_not_import_typer() -> None:
    program = (
        "import sys, sfad.__main__; print(sorted({'typer', 'pydantic', "
        "'rich'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


@first(1)
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SFAD_CRASH_AT", "²"),
        ("SFAD_CRASH_AT", "recover+"),
        ("SFAD_HANDOVER", "-1"),
        ("SFAD_HANDOVER", "99"),
    ],
)
def test_garbage_in_a_variable_is_an_error(tmp_path: Path, variable: str, value: str) -> None:
    env = os.environ | {
        "SFAD_STATE_DIR": str(tmp_path),
        "SFAD_SOCKET": str(tmp_path / "s"),
        variable: value,
    }
    done = subprocess.run(
        [sys.executable, "-m", "sfad"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (2, 69)
    assert "Traceback" not in done.stderr
    assert f"{variable}: " in done.stderr
    assert done.stderr.rstrip().endswith("unset it")


@first(1)
@pytest.mark.parametrize(
    ("variable", "what"),
    [
        ("SFAD_SOCKET", "socket"),
        ("SFAD_STATE_DIR", "state directory"),
        ("SFAD_CONFIG", "config file"),
    ],
)
def test_a_path_that_is_not_utf8_is_an_error(tmp_path: Path, variable: str, what: str) -> None:
    odd = os.fsencode(tmp_path) + b"/\xe9"
    Path(os.fsdecode(odd)).touch()
    env = os.environb | {
        b"SFAD_STATE_DIR": os.fsencode(tmp_path),
        b"SFAD_SOCKET": os.fsencode(tmp_path / "s"),
        variable.encode(): odd,
    }
    done = subprocess.run(
        [sys.executable, "-m", "sfad"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"sfad: the path of the {what}, {tmp_path}/\\xe9, is not UTF-8; "
        f"to choose another: {_ways(variable)}\n"
    )


def _ways(variable: str) -> str:
    option = {
        "SFAD_SOCKET": "--socket",
        "SFAD_STATE_DIR": "--state-dir",
        "SFAD_CONFIG": "--config",
    }[variable]
    return f"{option} or {variable}"


def test_an_endless_device_as_the_handover(tmp_path: Path) -> None:
    with open("/dev/zero", "rb") as zero:
        number = zero.fileno()
        env = os.environ | {
            "SFAD_STATE_DIR": str(tmp_path),
            "SFAD_SOCKET": str(tmp_path / "s"),
            "SFAD_HANDOVER": str(number),
        }
        done = subprocess.run(
            [sys.executable, "-m", "sfad"],
            env=env,
            pass_fds=[number],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 69
    assert f"SFAD_HANDOVER: descriptor {number} is not a memfd" in done.stderr
