"""`sfad install --fleet`: this machine as a node of a fleet. Ray is a service of systemd, which
starts it again; the daemon's config names the cluster and its token."""

import secrets
import shlex
import socket
from collections.abc import Collection, Iterable
from pathlib import Path

from .... import exits
from ....config import SYSTEM_CONFIG
from ....installing.service import STARTED, Installer, InstallError, files, render
from ....protocol.paths import xdg
from . import command

UNIT = "sfad-ray.service"
_PLACEHOLDER = "/usr/bin/env ray start --block"
_ENV_FILE = "FLEET_ENV"
TOKEN, ENV = "fleet-token", "fleet.env"


class FleetInstaller(Installer):
    """Ray beside a daemon of the user's or the system's."""

    started = (UNIT,)
    ends = "this node leaves the fleet"
    starts = "Ray starts"

    def __init__(self, where: str, node: str | None, *, user: bool, dry_run: bool = False) -> None:
        """`where`: `head`, or the address of the head; `node`: this node's name."""
        super().__init__(user=user, dry_run=dry_run)
        self._where = where
        self._node = node or socket.gethostname().split(".")[0]

    def _names(self) -> Iterable[str]:
        return (UNIT,)

    def _beside(self) -> Collection[Path]:
        return ()

    def _set_up(self) -> None:
        """Make nothing: that is done with the daemon."""

    def _rendered(self) -> dict[str, str]:
        self._write_token()
        env = command.environment(self._config / TOKEN) | command.endurance()
        self._write(self._config / ENV, "".join(f"{key}={value}\n" for key, value in env.items()))
        self._write_config()
        words = [str(command.program()), *command.arguments(self._where, self._node)]
        template = (files() / "fleet" / UNIT).read_text()
        text = render(template, {_PLACEHOLDER: words}, self._version())
        text = text.replace(_ENV_FILE, str(self._config / ENV))
        if not self._user:
            text = text.replace("WantedBy=default.target", "WantedBy=multi-user.target")
        return {UNIT: text}

    @property
    def _config(self) -> Path:
        """The directory of the daemon's config."""
        if not self._user:
            return SYSTEM_CONFIG.parent
        return xdg(self._steps.environ, "XDG_CONFIG_HOME", ".config") / "sfad"

    def _check_parts(self) -> None:
        """Raise `InstallError` where something is missing, before anything is installed."""
        if not command.program().exists():
            raise InstallError(
                f"Ray is not installed ({command.program()} does not exist): "
                "install sfad with its extra fleet: pip install 'sfad[fleet]'"
            )
        token = self._config / TOKEN
        if self._where.partition(":")[0] != command.HEAD and not token.exists():
            raise InstallError(
                f"{token} does not exist: copy it from the head, where it has the same name, with "
                "mode 0600"
            )

    def _write_token(self) -> None:
        path = self._config / TOKEN
        if path.exists():
            if not self._steps.dry_run:
                path.chmod(0o600)  # scp(1) keeps no mode
            print(f"unchanged: {path}")
            return
        if not self._steps.dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(32) + "\n")
        self._steps.say("write", str(path))

    def _write_config(self) -> None:
        """Add the section to the daemon's config, if it has none."""
        path = self._config / "sfad.toml"
        address = self._where
        if address.partition(":")[0] == command.HEAD:
            address = f"127.0.0.1:{address.partition(':')[2] or command.PORT}"
        text = (
            f'[fleet]\naddress = "{address}"\nnode = "{self._node}"\n'
            f'token_file = "{self._config / TOKEN}"\n'
        )
        before = path.read_text() if path.exists() else ""
        if "[fleet]" in before.splitlines():
            print(f"unchanged: {path} has a section [fleet]; it should be:\n{text}", end="")
            return
        self._write(path, f"{before.rstrip()}\n\n{text}" if before.strip() else text)

    def install(self, *, linger: bool = False) -> None:
        """Install the daemon, too, unless it is there. Raise `InstallError`, `OSError`."""
        name, colon, port = self._where.partition(":")
        if not name or (name != command.HEAD and not port) or (colon and not port.isdecimal()):
            raise InstallError(
                f"{self._where!r} is not the place of a head: give --fleet head on one machine, "
                "and --fleet HOST:PORT on each other one",
                exits.USAGE,
            )
        self._check_parts()
        daemon = Installer(user=self._user, dry_run=self._steps.dry_run)
        if not daemon.installed():
            daemon.install(linger=linger)
        super().install(linger=linger)

    def _start(self, *, changed: bool) -> None:
        self._steps.run(*self._systemctl, "restart" if changed else "start", UNIT)
        if self._steps.output(*self._systemctl, "is-active", STARTED[-1]) == "active":
            # it executes itself again, with its runs, and reads its config
            self._steps.run(*self._systemctl, "kill", "-s", "USR2", "--kill-who=main", STARTED[-1])

    def _tell_next(self) -> None:
        if self._where.partition(":")[0] == command.HEAD:
            port = self._where.partition(":")[2] or command.PORT
            scope = "--user" if self._user else "--system"
            there = f"sfad install {scope} --fleet {socket.gethostname()}:{port}"
            print(f"on each other machine: copy {self._config / TOKEN} to the same place; {there}")
        print(f"next: {shlex.join(['sfactl', 'fleet', 'nodes'])}")


installer = FleetInstaller
