"""`sfad install --web`: the console as a service of this user."""

import shlex
from collections.abc import Iterable
from pathlib import Path

from .service import CLIENT_PLACEHOLDER, Installer, client, files, render

UNIT = "sfad-web.service"
_OF_FILES = ("--cert", "--key", "--socket")
"""Options whose value is a path, which means another file in a service."""


class ConsoleInstaller(Installer):
    """The console beside a daemon of the user's or the system's."""

    started = (UNIT,)
    ends = "the console ends"
    starts = "the console starts"

    def __init__(self, options: list[str], *, dry_run: bool = False) -> None:
        """`options`: of `sfactl web`."""
        super().__init__(user=True, dry_run=dry_run)
        self._options = options

    def _names(self) -> Iterable[str]:
        return (UNIT,)

    def _rendered(self) -> dict[str, str]:
        template = (files() / "console" / UNIT).read_text()
        words = [*client(), "web", *_absolute(self._options)]
        self._steps.run(*words, "--check")
        return {UNIT: render(template, {f"{CLIENT_PLACEHOLDER} web": words})}

    def _start(self, *, changed: bool) -> None:
        self._steps.run(*self._systemctl, "restart" if changed else "start", UNIT)

    def _tell_next(self) -> None:
        print(f"next: {shlex.join([*client(), 'web', '--link'])}")


def _absolute(options: list[str]) -> Iterable[str]:
    before = ""
    for word in options:
        name, equals, value = word.partition("=")
        if before in _OF_FILES:
            yield str(Path(word).absolute())
        elif equals and name in _OF_FILES:
            yield f"{name}={Path(value).absolute()}"
        else:
            yield word
        before = word
