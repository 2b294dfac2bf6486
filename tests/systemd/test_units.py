"""The unit files contain only what `sfad` and systemd understand. `test_service` tests their
behaviour."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sfad.installing.service import CLIENT_PLACEHOLDER, PLACEHOLDER, InstallError, render, templates
from tests.template import run_forked

TOP = Path(__file__).parents[2] / "systemd"
UNITS = sorted(TOP.rglob("*.service"))
SERVICES = [unit for unit in UNITS if unit.name == "sfad.service"]

MOST_EXPOSED = 8.0
"""What `systemd-analyze security` may say of the system's service; docs/users.md says why it is not
less."""


def name(unit: Path) -> str:
    return "-".join(unit.parts[-2:])


def directives(unit: Path) -> dict[str, str]:
    """Return KEY=VALUE of all sections; no key is there twice."""
    pairs = [
        line.split("=", 1)
        for line in unit.read_text().splitlines()
        if "=" in line and not line.startswith("#")
    ]
    found = dict(pairs)
    assert len(found) == len(pairs)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=name)
def test_the_units_call_commands_of_sfad(unit: Path) -> None:
    lines = directives(unit)
    for key in {"ExecStart", "ExecReload", "ExecStopPost"} & set(lines):
        env, program, *words = lines[key].split()
        assert env == "/usr/bin/env"
        if program == "ray":  # an extra, which is not installed everywhere
            assert words == ["start", "--block"]
            continue
        assert program in ("sfad", "sfactl")
        done = run_forked(program, [*words, "--help"], os.environ, timeout=60)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("unit", SERVICES, ids=name)
def test_only_the_main_process_is_killed(unit: Path) -> None:
    lines = directives(unit)
    assert (lines["Type"], lines["Delegate"], lines["KillMode"]) == ("notify", "yes", "process")
    assert lines["OnFailure"] == "sfad-sweep.service"
    assert unit.with_name(lines["OnFailure"]) in UNITS


@pytest.mark.parametrize("service", SERVICES, ids=name)
def test_all_units_name_the_same_state_directory(service: Path) -> None:
    lines = directives(service)
    words = [
        lines["ExecStart"],
        lines["ExecStopPost"],
        directives(service.with_name("sfad-sweep.service"))["ExecStart"],
    ]
    assert len({line.partition("--state-dir ")[2] for line in words}) == 1


@pytest.mark.parametrize("service", SERVICES, ids=name)
def test_an_installed_unit_starts_the_program_that_installed_it(service: Path) -> None:
    text = render(
        service.read_text(),
        {PLACEHOLDER: ["/opt/100%/sfad"], CLIENT_PLACEHOLDER: ["/opt/100%/sfactl"]},
    )
    assert "\nExecStart=/opt/100%%/sfad serve" in text
    assert "\nExecReload=/opt/100%%/sfactl reload" in text
    assert "/usr/bin/env" not in text
    assert templates(user=service.parent.name == "user")[service.name] == service.read_text()
    with pytest.raises(InstallError, match="cannot contain"):
        render(service.read_text(), {PLACEHOLDER: ["/opt/my programs/sfad"]})


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("user", [False, True], ids=["system", "user"])
def test_systemd_accepts_the_units(user: bool, tmp_path: Path) -> None:
    version = int(
        subprocess.run(
            ["systemd-analyze", "--version"], capture_output=True, text=True, timeout=60
        ).stdout.split()[1]
    )
    for unit, text in templates(user=user).items():
        (tmp_path / unit).write_text(
            render(
                text, {PLACEHOLDER: ["/usr/bin/env"], CLIENT_PLACEHOLDER: ["/usr/bin/env"]}, version
            )
        )
    scope, units = "--user" if user else "--system", sorted(tmp_path.iterdir())
    env = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path / "runtime")}  # it makes a directory there
    done = subprocess.run(
        ["systemd-analyze", scope, "verify", *units],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    # it exits 0 on unknown keys, and complains about the machine's own units
    assert [line for line in done.stderr.splitlines() if "sfad" in line] == []


@pytest.mark.needs("systemd-analyze")
def test_the_systems_service_is_hardened() -> None:
    command = ["systemd-analyze", "security", "--offline=yes", str(TOP / "sfad.service")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert float(said.rpartition("sfad.service: ")[2].split()[0]) < MOST_EXPOSED
