"""The config of a running daemon: read again, and compared with the one in force."""

from dataclasses import replace
from pathlib import Path

from . import config as configuration
from . import kept_config, usable_config
from .observe.log import Log
from .protocol.messages import Change, Setting

REMOVED = "removed"
"""The source of a setting that no file has any more."""

AT_START = ("access.users", "containment.", "log.")
"""Settings that a running daemon cannot change."""


class ConfigFiles:
    """The config files, and what the daemon has made of them."""

    def __init__(self, files: tuple[list[Path], bool], loaded: configuration.Loaded, log: Log, state_dir: Path) -> None:
        self._files = files
        self._log = log
        self._state_dir = state_dir
        self.loaded = loaded
        if loaded.rejected is not None:
            self._log.error(f"the config of the daemon before this one is in force, because of an error: {loaded.rejected}")

    def read(self) -> tuple[configuration.Loaded, list[Change]]:
        """Read the files again. Return the config that is in force then, and what is different. Raises `ConfigError`, and the old
        one stays."""
        try:
            self._log.reopen()  # it may have been rotated away
            loaded = usable_config.read(self._files)
        except (configuration.ConfigError, OSError) as error:
            self._log.error(f"the config was not reloaded: {error}")
            raise configuration.ConfigError(str(error)) from error
        self._keep(loaded)
        changed = _changes(self.loaded.settings, loaded.settings)
        self.loaded = replace(loaded, settings=_in_force(self.loaded.settings, loaded.settings))
        return self.loaded, changed

    def keep(self) -> None:
        """Keep the config for the next daemon, if this one dies."""
        if self.loaded.rejected is None:  # else it is kept already
            self._keep(self.loaded)

    def _keep(self, loaded: configuration.Loaded) -> None:
        try:
            kept_config.keep(loaded, self._state_dir)
        except OSError as error:
            self._log.warning(f"the config cannot be kept for the next daemon in {self._state_dir}: {error.strerror}")

    def forget(self) -> None:
        """Do not keep it: this daemon leaves no runs, so the next start may fail."""
        try:
            kept_config.forget(self._state_dir)
        except OSError as error:
            self._log.warning(f"{self._state_dir / kept_config.FILE} cannot be removed: {error.strerror}")


def _in_force(old: list[Setting], new: list[Setting]) -> list[Setting]:
    """Return the settings after a reload. Some keep their old value until a restart."""
    before = {setting.key: setting for setting in old}
    return [before[setting.key] if setting.key.startswith(AT_START) else setting for setting in new]


def _changes(old: list[Setting], new: list[Setting]) -> list[Change]:
    # a key of a table of names may be there on one side only
    before, after = ({setting.key: setting for setting in settings} for settings in (old, new))
    found = []
    for key in dict.fromkeys([*before, *after]):
        was, now = (None if setting is None else setting.value for setting in (before.get(key), after.get(key)))
        if was != now:
            source = after[key].source if key in after else REMOVED
            found.append(Change(key=key, old=was, new=now, source=source, waits=key.startswith(AT_START)))
    return found
