"""Whether a daemon can use a config on this machine. `serve`, `check-config` and a reload refuse the same."""

import os
from pathlib import Path

from . import config as configuration
from .config import ConfigError, Configuration, Loaded
from .host.audience import check_owner
from .host.socket_file import PathError
from .launch.choice import check_containment as check_cgroups
from .launch.launcher import CgroupImpossible
from .startup import DaemonHome


def load(home: DaemonHome) -> Loaded:
    """Read the config files of a daemon that is to start. Raises `ConfigError`, also for what that daemon could not do."""
    loaded = read(home.config_files)
    check_containment(loaded.config, home)
    return loaded


def read(files: tuple[list[Path], bool]) -> Loaded:
    """Read config files for a daemon that has its containment. Raises `ConfigError`, also for what that daemon could not do."""
    loaded = configuration.load(files[0], required=files[1])
    if loaded.config.access.users == "all" and loaded.config.containment.mode == "tags":
        raise _refused(loaded, "access.users", 'access.users = "all" needs containment by cgroup, and containment.mode is "tags"')
    try:
        check_owner(loaded.config.access.users)
    except PathError as error:
        raise _refused(loaded, "access.users", str(error)) from error
    if (file := loaded.config.log.file) is not None and (trouble := _cannot_append(Path(file))):
        raise _refused(loaded, "log.file", f"log.file = {file} cannot be opened: {trouble}")
    return loaded


def check_containment(config: Configuration, home: DaemonHome) -> None:
    """Raise `ConfigError` if the config needs cgroups and this process cannot contain runs in them."""
    needs = config.containment.mode == "cgroup" or config.access.users == "all"
    try:
        check_cgroups(home.instance, "cgroup" if needs else "auto", config.containment.cgroup_parent)
    except CgroupImpossible as error:
        key = 'containment.mode = "cgroup"' if config.containment.mode == "cgroup" else 'access.users = "all"'
        raise ConfigError(f"{key}: runs cannot be contained by cgroup: {error}") from error


def _cannot_append(path: Path) -> str | None:
    """Return why a file cannot be opened for appending. Does not make one."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except FileNotFoundError as error:
        return None if os.access(path.parent, os.W_OK | os.X_OK) and path.name else error.strerror
    except OSError as error:
        return error.strerror
    return None


def _refused(loaded: Loaded, key: str, message: str) -> ConfigError:
    source = next(setting.source for setting in loaded.settings if setting.key == key)
    return ConfigError(f"{source}: {message}")
