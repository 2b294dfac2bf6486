"""The config of a live daemon, kept in the state directory for the next one.

A daemon that died must be replaced, because its runs are alive, even if a config file has been broken since. A daemon that stops in
order removes what it kept: the next start has no runs to supervise, and fails with the error.
"""

import os
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import Struct

from . import config as configuration
from . import usable_config
from .host.private_files import create, is_regular
from .startup import DaemonHome

FILE = "config.kept"
_UNFINISHED = "config.new"


class _Files(Struct):
    contents: list[tuple[str, bytes]]
    """Path and content of each file, the weakest first."""
    strongest: str | None


def load(home: DaemonHome) -> configuration.Loaded:
    """Read the config files, and if this daemon cannot use them, the config that an earlier daemon kept. Raises `ConfigError`."""
    try:
        return usable_config.load(home)
    except configuration.ConfigError as error:
        if (kept := _read(home)) is None:
            raise
        return replace(kept, rejected=str(error))


def _read(home: DaemonHome) -> configuration.Loaded | None:
    path = home.state_dir / FILE
    try:
        if not is_regular(path):
            return None
        found = msgspec.msgpack.decode(path.read_bytes(), type=_Files)
        strongest = None if found.strongest is None else Path(found.strongest)
        kept = configuration.understand([(Path(name), content) for name, content in found.contents], strongest)
        usable_config.check_containment(kept.config, home)
        return kept
    except (OSError, msgspec.DecodeError, configuration.ConfigError):  # the caller reports the error of the files themselves
        return None


def keep(loaded: configuration.Loaded, state_dir: Path) -> None:
    """Keep the config for the next daemon. Raises `OSError`."""
    contents = [(os.fspath(path), content) for path, content in zip(loaded.files, loaded.contents, strict=True)]
    strongest = None if loaded.strongest is None else os.fspath(loaded.strongest)
    unfinished = state_dir / _UNFINISHED
    with os.fdopen(create(unfinished), "wb") as file:
        file.write(msgspec.msgpack.encode(_Files(contents, strongest)))
        file.flush()
        os.fsync(file.fileno())  # also a machine that lost power comes back with it
    unfinished.rename(state_dir / FILE)


def forget(state_dir: Path) -> None:
    """Remove what was kept. Raises `OSError`."""
    (state_dir / FILE).unlink(missing_ok=True)
