"""Where runs find shims, and where they cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import variant

from .conftest import PATIENCE, World

SERVING = """
mount -t tmpfs -o noexec tmpfs "$SFAD_STATE_DIR" || exit 99
{python} -m sfad serve >"$HOME/log" 2>&1 & daemon=$!
until {python} -m sfactl status >/dev/null 2>&1; do kill -0 $daemon || exit 98; done
{python} -m sfactl run -q --gateway -- true
{python} -m sfactl doctor
kill $daemon
wait $daemon
cat "$HOME/log"
"""


def test_a_login_shell_finds_installed_shims_also_without_the_gateway(
    world: World, tmp_path: Path
) -> None:
    """And the file that bash reads for a person is still read."""
    binaries = world.directory / "bin"
    binaries.mkdir()
    (binaries / "claude").write_text('#!/bin/sh\necho "$SFA_DEPTH $THEIRS"\n')
    (binaries / "claude").chmod(0o755)
    theirs = tmp_path / "their bash env"
    theirs.write_text("export THEIRS=seen\n")
    (world.directory / ".bash_profile").write_text(f'export PATH="{binaries}:/usr/bin:/bin"\n')
    world.env |= {"PATH": f"{binaries}:/usr/bin:/bin", "BASH_ENV": str(theirs)}
    with world.served():
        words = ("run", "-q", "--no-gateway", "--", "bash", "-lc", "claude")
        assert world.sfactl(*words).stdout == "0 seen\n", "no shim is there"
        world.sfactl("shim", "install", "claude")
        assert world.sfactl(*words).stdout == "1 seen\n"


@variant
def test_a_state_directory_that_executes_nothing_is_told(world: World) -> None:
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not make user namespaces")
    binaries = world.directory / "bin"
    binaries.mkdir()
    (binaries / "claude").write_text("#!/bin/sh\n")
    (binaries / "claude").chmod(0o755)
    world.state.mkdir(mode=0o700)
    done = subprocess.run(
        [*alone, "sh", "-c", SERVING.format(python=sys.executable)],
        env=world.env | {"PATH": f"{binaries}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert "BAD    shims: the filesystem of " in done.stdout, done.stdout + done.stderr
    assert "mount it without noexec" in done.stdout
    assert "is mounted noexec, so runs do not find the shims" in done.stdout.partition("BAD")[2]
