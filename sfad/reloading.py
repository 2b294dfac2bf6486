"""The config of a running daemon: read again, and compared with the one in force."""

from dataclasses import replace
from pathlib import Path

from . import config as configuration
from .observe.log import Log
from .protocol.messages import Change, Setting

REMOVED = "removed"
"""The source of a setting that no file has any more."""

AT_START = ("access.users", "containment.", "log.")
"""Settings that a running daemon cannot change."""


class ConfigFiles:
    def __init__(self, files: tuple[list[Path], bool], loaded: configuration.Loaded, log: Log) -> None:
        self._files = files
        self._log = log
        self.loaded = loaded

    def read(self) -> tuple[configuration.Loaded, list[Change]]:
        """Read the files again. Return the config that is in force then, and what is different. Raises `ConfigError`, and the old
        one stays."""
        files, required = self._files
        try:
            self._log.reopen()  # it may have been rotated away
            loaded = configuration.load(files, required=required)
        except (configuration.ConfigError, OSError) as error:
            self._log.error(f"the config was not reloaded: {error}")
            raise configuration.ConfigError(str(error)) from error
        changed = _changes(self.loaded.settings, loaded.settings)
        self.loaded = replace(loaded, settings=_in_force(self.loaded.settings, loaded.settings))
        return self.loaded, changed


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
