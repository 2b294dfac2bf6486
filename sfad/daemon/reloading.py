"""The config of a running daemon: read again and compared, checked against this machine, and kept
for the next daemon."""

import os
from pathlib import Path

import msgspec
from msgspec import Struct, structs
from msgspec.structs import replace

from .. import config as configuration
from ..config import ConfigError, Configuration, Loaded
from ..host.files import UNDECODABLE, create, is_regular, keep_damaged
from ..host.log import Log
from ..host.socket_file import PathError, check_owner
from ..processes.launcher import CgroupImpossible
from ..processes.local_launcher import check_containment as check_cgroups
from ..protocol.messages import Change, Setting
from .startup import DaemonHome

# ---- Whether a daemon can use a config on this machine. `serve`, `check-config` and a reload
# refuse the same.


def load_usable(home: DaemonHome) -> Loaded:
    """Read the config files of a daemon that is to start. Raises `ConfigError`, also for what that
    daemon could not do."""
    loaded = read(home.config_files)
    check_containment(loaded.config, home)
    return loaded


def read(files: tuple[list[Path], bool]) -> Loaded:
    """Read config files for a daemon that has its containment. Raises `ConfigError`, also for what
    that daemon could not do."""
    loaded = configuration.load(files[0], required=files[1])
    if loaded.config.access.users == "all" and loaded.config.containment.mode == "tags":
        raise _refused(
            loaded,
            "access.users",
            'access.users = "all" needs containment by cgroup, and containment.mode is "tags"',
        )
    try:
        check_owner(loaded.config.access.users)
    except PathError as error:
        raise _refused(loaded, "access.users", str(error)) from error
    if (file := loaded.config.log.file) is not None and (trouble := _cannot_append(Path(file))):
        raise _refused(loaded, "log.file", f"log.file = {file} cannot be opened: {trouble}")
    return loaded


def check_containment(config: Configuration, home: DaemonHome) -> None:
    """Raise `ConfigError` if the config needs cgroups and this process cannot contain runs in
    them."""
    needs = config.containment.mode == "cgroup" or config.access.users == "all"
    try:
        check_cgroups(
            home.instance, "cgroup" if needs else "auto", config.containment.cgroup_parent
        )
    except CgroupImpossible as error:
        key = (
            'containment.mode = "cgroup"'
            if config.containment.mode == "cgroup"
            else 'access.users = "all"'
        )
        raise ConfigError(f"{key}: runs cannot be contained by cgroup: {error}") from error


def _cannot_append(path: Path) -> str | None:
    """Return why a file cannot be opened for appending. Does not make one."""
    try:
        os.close(
            os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        )
    except FileNotFoundError as error:
        return None if os.access(path.parent, os.W_OK | os.X_OK) and path.name else error.strerror
    except OSError as error:
        return error.strerror
    return None


def _refused(loaded: Loaded, key: str, message: str) -> ConfigError:
    source = next(setting.source for setting in loaded.settings if setting.key == key)
    return ConfigError(f"{source}: {message}")


# ---- The config of a live daemon, kept in the state directory for the next one
#
# A daemon that died must be replaced, because its runs are alive, even if a config file has been
# broken since. A daemon that stops in order removes what it kept: the next start has no runs to
# supervise, and fails with the error.


FILE = "config.kept"
_UNFINISHED = "config.new"


class _Files(Struct):
    contents: list[tuple[str, bytes]]
    """Path and content of each file, the weakest first."""
    strongest: str | None


def load_kept(home: DaemonHome) -> configuration.Loaded:
    """Read the config files, and if this daemon cannot use them, the config that an earlier daemon
    kept. Raises `ConfigError`."""
    try:
        return load_usable(home)
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
        check_containment(config, home)
    except configuration.ConfigError:  # the caller reports the error of the files themselves
        return False
    return True


def _read(state_dir: Path) -> configuration.Loaded | None:
    path = state_dir / FILE
    if not is_regular(path):
        return None
    found = msgspec.msgpack.decode(path.read_bytes(), type=_Files)
    strongest = None if found.strongest is None else Path(found.strongest)
    return configuration.understand(
        [(Path(name), content) for name, content in found.contents], strongest
    )


def keep(loaded: configuration.Loaded, state_dir: Path) -> None:
    """Keep the config for the next daemon. Raises `OSError`."""
    contents = [
        (os.fspath(path), content)
        for path, content in zip(loaded.files, loaded.contents, strict=True)
    ]
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


# ---- The config of a running daemon: read again, and compared with the one in force


REMOVED = "removed"
"""The source of a setting that no file has any more."""

_SECTIONS = [section.key for section in configuration.SECTIONS if section.at_start]
AT_START = tuple(sorted(["access.users", "containment.", "log.", *map("{}.".format, _SECTIONS)]))
"""Settings that a running daemon cannot change."""


class ConfigFiles:
    """The config files, and what the daemon has made of them."""

    def __init__(
        self,
        files: tuple[list[Path], bool],
        loaded: configuration.Loaded,
        log: Log,
        state_dir: Path,
    ) -> None:
        self._files = files
        self._log = log
        self._state_dir = state_dir
        self.loaded = loaded
        if loaded.rejected is not None:
            self._log.error(
                "the config of the daemon before this one is in force, "
                f"because of an error: {loaded.rejected}"
            )

    def read(self) -> tuple[configuration.Loaded, list[Change]]:
        """Read the files again. Return the config that is in force then, and what is different.
        Raises `ConfigError`, and the old one stays."""
        try:
            self._log.reopen()  # it may have been rotated away
            loaded = read(self._files)
        except (configuration.ConfigError, OSError) as error:
            self._log.error(f"the config was not reloaded: {error}")
            raise configuration.ConfigError(str(error)) from error
        self._keep(loaded)
        changed = _changes(self.loaded.settings, loaded.settings)
        old, new = self.loaded.config, loaded.config
        self.loaded = replace(
            loaded,
            config=structs.replace(new, **{key: getattr(old, key) for key in _SECTIONS}),
            settings=_in_force(self.loaded.settings, loaded.settings),
        )
        return self.loaded, changed

    def keep(self) -> None:
        """Keep the config for the next daemon, if this one dies."""
        if self.loaded.rejected is None:  # else it is kept already
            self._keep(self.loaded)

    def _keep(self, loaded: configuration.Loaded) -> None:
        try:
            keep(loaded, self._state_dir)
        except OSError as error:
            self._log.warning(
                "the config cannot be kept for the next daemon "
                f"in {self._state_dir}: {error.strerror}"
            )

    def forget(self) -> None:
        """Do not keep it: this daemon leaves no runs, so the next start may fail."""
        try:
            forget(self._state_dir)
        except OSError as error:
            self._log.warning(f"{self._state_dir / FILE} cannot be removed: {error.strerror}")


def _in_force(old: list[Setting], new: list[Setting]) -> list[Setting]:
    """Return the settings after a reload. Some keep their old value until a restart."""
    before = {setting.key: setting for setting in old}
    return [before[setting.key] if setting.key.startswith(AT_START) else setting for setting in new]


def _changes(old: list[Setting], new: list[Setting]) -> list[Change]:
    # a key of a table of names may be there on one side only
    before, after = ({setting.key: setting for setting in settings} for settings in (old, new))
    found = []
    for key in dict.fromkeys([*before, *after]):
        was, now = (
            None if setting is None else setting.value
            for setting in (before.get(key), after.get(key))
        )
        if was != now:
            source = after[key].source if key in after else REMOVED
            found.append(
                Change(key=key, old=was, new=now, source=source, waits=key.startswith(AT_START))
            )
    return found
