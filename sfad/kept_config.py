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
from .host.damage import UNDECODABLE, keep_damaged
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
        try:
            kept = _read(home.state_dir)
        except (OSError, *UNDECODABLE, configuration.ConfigError) as damage:
            kept_as = keep_damaged(home.state_dir / FILE)
            raise configuration.ConfigError(
                f"{error}; nor can {FILE}, the last good config, be used: {damage}; {kept_as}"
            ) from error
        if kept is None or not _can_contain(kept.config, home):
            raise
        return replace(kept, rejected=str(error))


def _can_contain(config: configuration.Configuration, home: DaemonHome) -> bool:
    try:
        usable_config.check_containment(config, home)
    except configuration.ConfigError:  # the caller reports the error of the files themselves
        return False
    return True


def _read(state_dir: Path) -> configuration.Loaded | None:
    path = state_dir / FILE
    if not is_regular(path):
        return None
    found = msgspec.msgpack.decode(path.read_bytes(), type=_Files)
    strongest = None if found.strongest is None else Path(found.strongest)
    return configuration.understand([(Path(name), content) for name, content in found.contents], strongest)


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
