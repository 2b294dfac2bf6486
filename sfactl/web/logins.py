"""Links that log a browser in, and the browsers that are logged in: files of the user, which
outlive a console.

A file is named by the hash of its secret, and empty: a reader of the directory learns no secret.
The files of a console are in a directory that is named by where it listens, and its lock is held
while the console runs, so that `sfactl web --link` finds it. A link works once, because only one
process can unlink its file.
"""

import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from sfad.protocol.paths import make_private, xdg

LINK_SECONDS = 600.0
"""How long a link works."""
UNTIL_USED = 1e8
"""Seconds for the link that a console prints when it starts: it works as long as the console."""
LOGIN_DAYS = 30
"""After so many days without a request, a browser has to log in again."""
MOST_LOGINS = 32
_LOOK = 1.0
"""Seconds to wait for another process that only looks at a lock."""
_SEEN_AGAIN = 3600.0
"""Seconds between two notes of when a browser was seen."""


class Login(msgspec.Struct, frozen=True):
    """A browser that has logged in."""

    cookie: str

    @property
    def token(self) -> str:
        """What its pages send with each POST."""
        return _hash(f"token {self.cookie}")


class Logins:
    """The links and logins of one console, in its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._links, self._logins = directory / "links", directory / "logins"
        for each in (self._links, self._logins):
            each.mkdir(mode=0o700, exist_ok=True)

    def link(self, seconds: float = LINK_SECONDS) -> str:
        """Return the token of a new link."""
        self._remove_old(self._links, time.time())
        token = secrets.token_urlsafe(32)
        until = time.time() + seconds
        path = self._links / _hash(token)
        path.touch(mode=0o600)
        os.utime(path, (until, until))
        return token

    def use(self, token: str) -> Login | None:
        """Log a browser in; `None` if the link was used, has expired or was never made."""
        path = self._links / _hash(token)
        try:
            until = path.stat().st_mtime
            path.unlink()
        except FileNotFoundError:
            return None
        if until <= time.time():
            return None
        seen = sorted(self._logins.iterdir(), key=_modified, reverse=True)
        for each in seen[MOST_LOGINS - 1 :]:
            each.unlink(missing_ok=True)
        login = Login(secrets.token_urlsafe(32))
        self._file(login).touch(mode=0o600)
        return login

    def login(self, cookie: str) -> Login | None:
        """Return the login of a cookie, if it is logged in."""
        login, now = Login(cookie), time.time()
        path = self._file(login)
        age = now - _modified(path)
        if age > LOGIN_DAYS * 86400:
            self.log_out(login)
            return None
        if age > _SEEN_AGAIN:
            with suppress(FileNotFoundError):
                os.utime(path, (now, now))
        return login

    def log_out(self, login: Login) -> None:
        self._file(login).unlink(missing_ok=True)

    def forget_all(self) -> None:
        """Log all browsers out, and make all links useless."""
        for directory in (self._links, self._logins):
            self._remove_old(directory, float("inf"))

    def end_with_console(self) -> None:
        """Remove the link that a console has printed when it started."""
        for each in self._links.iterdir():
            if _modified(each) > time.time() + LINK_SECONDS:
                each.unlink(missing_ok=True)

    def _file(self, login: Login) -> Path:
        return self._logins / _hash(login.cookie)

    @staticmethod
    def _remove_old(directory: Path, until: float) -> None:
        for each in directory.iterdir():
            if _modified(each) <= until:
                each.unlink(missing_ok=True)


def _modified(path: Path) -> float:
    """Return when a file was modified, in Unix seconds; for a file that is gone, the beginning of
    time."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _hash(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


# ---- consoles that run


class Running(msgspec.Struct):
    """What a console says of itself in its lock, for `sfactl web --link`."""

    origins: list[str]
    """How a browser may reach it, the best for another device first."""
    elsewhere: bool
    """Whether another device can reach it."""


def home(env: Mapping[str, str]) -> Path:
    """Return the directory of all consoles of this user. Raise `ValueError`."""
    return xdg(env, "XDG_STATE_HOME", ".local/state") / "sfactl-web"


@contextmanager
def kept(place: str) -> Iterator[tuple[Logins, int, OSError | ValueError | None]]:
    """Hold the lock of the console that listens at `place`. Yield its logins, the descriptor of the
    lock, and why the logins cannot outlive the console, if so. Raise `Held` if another console has
    the lock."""
    with ExitStack() as stack:
        why: OSError | ValueError | None = None
        try:
            directory = _own(home(os.environ) / place)
        except (OSError, ValueError) as error:
            brief = stack.enter_context(tempfile.TemporaryDirectory(prefix="sfactl-web-"))
            directory, why = Path(brief), error
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, lock)
        _lock(lock, place)
        known = Logins(directory)
        known.end_with_console()
        yield known, lock, why


def _lock(lock: int, place: str) -> None:
    until = time.monotonic() + _LOOK
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise Held(place) from None
        time.sleep(0.01)  # `running` of another process looks at it for a moment


class Held(Exception):
    """Another console of this user listens at this place."""


def _own(directory: Path) -> Path:
    """Return a directory that only this user can change. Raise `OSError`."""
    make_private(directory)
    for each in (directory, directory.parent):
        found = each.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(f"{each} can be changed by other users")
    return directory


def distrust(place: str) -> None:
    """Log all browsers out of the console at `place`, unless it runs."""
    with suppress(OSError, ValueError, Held):
        if (home(os.environ) / place).exists():
            with kept(place) as (known, _, _):
                known.forget_all()


def announce(lock: int, running: Running) -> None:
    """Write into the lock how the console is reached."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, msgspec.json.encode(running), 0)


def runs(place: str) -> bool:
    """Return whether a console of this user listens at `place`."""
    try:
        return place in running()
    except ValueError:
        return False


def running() -> dict[str, tuple[Path, Running]]:
    """Return the consoles of this user that run, by where they listen. Raise `ValueError` if it is
    not known where they are noted."""
    found: dict[str, Any] = {}
    for lock in home(os.environ).glob("*/lock"):
        try:
            with lock.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    told = msgspec.json.decode(file.read(), type=Running)
                    found[lock.parent.name] = lock.parent, told
        except (OSError, msgspec.DecodeError):
            continue  # it is starting, or has gone
    return found
