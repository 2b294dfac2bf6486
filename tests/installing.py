"""`python -m tests.installing`: builds the wheel and installs it as people do, each in directories
of its own: with pip, pipx and uv, with each Python that this machine has of those that sfad
supports, without a network, and over an older release while a run is alive.

What is installed is tried from an empty directory. A way that this machine does not have is named.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .harness import wait_until

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
UNITS = ("sfad.service", "sfad.socket", "user/sfad.service", "user/sfad.socket")
OLDER = "0.0.1"
"""A version before each release."""


def main() -> int:
    """0 if each way worked."""
    with tempfile.TemporaryDirectory(prefix="sfad-installing-") as directory:
        place = Path(directory)
        wheel = built(ROOT, place / "wheel")
        tools = environment(sys.executable, place / "tools", "pipx", "uv")
        for python in pythons():
            say(f"pip, {python}")
            tried(environment(python, place / "pip", str(wheel)), place)
            shutil.rmtree(place / "pip")
        for name, words in (
            ("pipx", ("install", "--python")),
            ("uv", ("tool", "install", "--quiet", "--python")),
        ):
            say(name)
            env = homes(place / name)
            run(tools / name, *words, sys.executable, str(wheel), env=env)
            tried(place / name / "bin", place)
        say("pip, without a network")
        without_network(wheel, place)
        say("over an older release, with a live run")
        upgraded(wheel, place)
    return 0


def say(way: str) -> None:
    print(f"installing: {way}", flush=True)


def run(*words: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Return what a command prints."""
    done = subprocess.run(
        list(map(str, words)), env=env, cwd=cwd, stdout=subprocess.PIPE, text=True, timeout=600
    )
    if done.returncode:
        sys.exit(f"installing: {' '.join(map(str, words))} exited with {done.returncode}")
    return done.stdout


def built(source: Path, into: Path) -> Path:
    """Return the wheel of a tree."""
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(into), str(source))
    return next(into.glob("sfad-*.whl"))


def pip(python: str | Path, *words: str) -> None:
    run(python, "-m", "pip", "--quiet", "--disable-pip-version-check", *words)


def environment(python: str | Path, place: Path, *packages: str) -> Path:
    """Return the directory of programs of a new virtual environment with these packages."""
    run(python, "-m", "venv", place)
    if packages:
        pip(place / "bin/python", "install", "--no-compile", *packages)
    return place / "bin"


def pythons() -> Iterator[str]:
    """Return the interpreters that can make a virtual environment."""
    for version in PYTHONS:
        found = [
            shutil.which(f"python{version}"),
            *map(str, (Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python3")),
        ]
        asked = ("-c", f"import ensurepip, sys; assert sys.version.startswith({version!r})")
        for each in filter(None, found):
            if not subprocess.run([each, *asked], stderr=subprocess.DEVNULL).returncode:
                yield each
                break
        else:
            print(f"installing: not tried: Python {version} is not here")


def homes(place: Path) -> dict[str, str]:
    """Return the environment in which pipx and uv write below one directory."""
    return os.environ | {
        "PIPX_HOME": str(place / "home"),
        "PIPX_BIN_DIR": str(place / "bin"),
        "PIPX_MAN_DIR": str(place / "man"),
        "UV_TOOL_DIR": str(place / "home"),
        "UV_TOOL_BIN_DIR": str(place / "bin"),
        "UV_CACHE_DIR": str(place / "cache"),
        "UV_PYTHON_DOWNLOADS": "never",
    }


@contextmanager
def surroundings(programs: Path, place: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """Give the environment of a daemon of its own, and an empty directory."""
    with tempfile.TemporaryDirectory(dir=place) as directory:
        home, empty = Path(directory) / "home", Path(directory) / "empty"
        home.mkdir()
        empty.mkdir()
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SFA", "PYTHON"))
        }
        path = f"{programs}:{env['PATH']}"
        named = {"SFAD_STATE_DIR": f"{directory}/state", "SFAD_SOCKET": f"{directory}/socket"}
        yield env | {"HOME": str(home), "PATH": path, **named}, empty
        if left := list(empty.iterdir()):
            sys.exit(f"installing: files were left behind: {left}")


def tried(programs: Path, place: Path) -> None:
    """Try what is installed."""
    with surroundings(programs, place) as (env, empty):
        run("sfad", "version", env=env, cwd=empty)
        run("sfad", "check-config", env=env, cwd=empty)
        run("sfactl", "--help", env=env, cwd=empty)
        run("sfactl", "demo", env=env, cwd=empty)
        ping = '{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
        told = subprocess.run(
            ["sfactl", "mcp"], input=ping, env=env, cwd=empty, text=True, capture_output=True
        ).stdout
        assert json.loads(told)["result"] == {}, told
    package = Path(os.path.realpath(programs / "sfad")).parents[1]
    units = {unit: list(package.glob(f"lib/*/site-packages/sfad/units/{unit}")) for unit in UNITS}
    missing = [unit for unit, found in units.items() if not found]
    assert not missing, missing


def without_network(wheel: Path, place: Path) -> None:
    """Install what was fetched before, where no network is."""
    fetched = place / "fetched"
    pip(sys.executable, "download", "--dest", str(fetched), str(wheel))
    programs = environment(sys.executable, place / "offline")
    words = ("install", "--no-compile", "--no-index", "--find-links", str(fetched), "sfad")
    alone = ("unshare", "--net", "--map-root-user") if shutil.which("unshare") else ()
    run(*alone, programs / "python", "-m", "pip", "--quiet", *words)
    tried(programs, place)


def upgraded(wheel: Path, place: Path) -> None:
    """Install over an older release whose daemon has a run, and reload it: the run goes on."""
    source = place / "older"
    git = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for name in filter(None, git):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    init = source / "sfad/__init__.py"
    lines = init.read_text().splitlines()
    init.write_text(
        "\n".join(f'__version__ = "{OLDER}"' if x.startswith("__version__") else x for x in lines)
    )
    programs = environment(
        sys.executable, place / "upgraded", str(built(source, place / "older-wheel"))
    )
    with surroundings(programs, place) as (env, empty):
        assert OLDER in run("sfad", "version", env=env, cwd=empty)
        run("sfactl", "spawn", "--timeout", "10m", "--", "sleep", "600", env=env, cwd=empty)
        before = told_by("status", env, empty)
        try:
            pip(programs / "python", "install", "--no-compile", str(wheel))
            run("sfactl", "reload", env=env, cwd=empty)
            wait_until(
                lambda: told_by("status", env, empty)["version"] != OLDER, "the newer one answers"
            )
            after = told_by("status", env, empty)
            assert after["pid"] == before["pid"], (before, after)
            rows = told_by("list", env, empty)["runs"]
            assert [row["status"] for row in rows] == ["running"], rows
            run("sfactl", "stop", rows[0]["id"], env=env, cwd=empty)
        finally:
            os.kill(before["pid"], signal.SIGTERM)
            wait_until(lambda: not Path(f"/proc/{before['pid']}").exists(), "the daemon has ended")


def told_by(verb: str, env: Mapping[str, str], cwd: Path) -> Any:
    return json.loads(run("sfactl", verb, "--json", env=env, cwd=cwd))


if __name__ == "__main__":
    sys.exit(main())
