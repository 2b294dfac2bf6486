"""What an isolated command can see and write.

It sees the system's programs and settings (`SYSTEM`), other programs (`programs`), its working
directory, and what the caller names. It sees nothing else, because no list can name all places
where people keep secrets and where services have sockets. In what the caller names, the daemon's
own files and usual places of secrets stay hidden. It can write to its working directory and to what
the caller names for that.

A sandbox inherits what its root may write, and an attempt has what the one before had. So an agent
cannot give its children, or its next attempt, more than it has itself, whatever links it makes:
what is writable is named by paths without links, or by links that lie in nothing writable. When
bubblewrap looks at these paths again, no part of the way to one lies in another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

# ---- Paths as the kernel follows them


_MOST_LINKS = 40


class ForbiddenError(Exception):
    """A sandbox cannot be as it is asked for. The message says why."""


def within(path: str, top: str) -> bool:
    """Return whether a path is `top` or below it."""
    return path == top or top == "/" or path.startswith(top + "/")


def within_any(path: str, tops: Iterable[str]) -> bool:
    return any(within(path, top) for top in tops)


def followed(path: str) -> tuple[str, list[str]]:
    """Return the real path, and the links on the way to it. Each is read once, so that both tell of
    the same moment. Raise `ForbiddenError`."""
    names = path.split("/")[::-1]
    links: list[str] = []
    real = ""
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            real = real.rpartition("/")[0]
            continue
        try:
            target = os.readlink(f"{real}/{name}")
        except OSError:  # no link, or not there
            real = f"{real}/{name}"
            continue
        links.append(f"{real}/{name}")
        if len(links) > _MOST_LINKS:
            raise ForbiddenError(f"{path} is a link with too many others behind it")
        names += target.split("/")[::-1]
        real = "" if target.startswith("/") else real
    return real or "/", links


def topmost(paths: Iterable[str]) -> list[str]:
    """Return the paths that lie in no other."""
    found: list[str] = []
    for path in sorted(set(paths), key=len):
        if not within_any(path, found):
            found.append(path)
    return found


# ---- What a command can see and write


SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu",
    "/snap", "/sys", "/var/lib/dpkg", "/var/lib/rpm", "/var/lib/pacman", "/var/lib/ca-certificates",
    "/var/cache/fontconfig",
)  # fmt: skip
"""Programs, settings, and what programs look up. Not the rest of /var, /srv or /home."""
PRIVATE = ("/tmp", "/var/tmp", "/run")  # noqa: S108 - of the sandbox
TEMPORARY = PRIVATE[:2]
"""Empty directories of the sandbox's own, and those in which the working directory may be."""
SETTINGS = (
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
    "/proc/fs",
    "/proc/acpi",
    "/proc/scsi",
)
"""Settings of the whole machine. Root may write them as their owner, without any capability:
core_pattern names a program that the kernel executes outside."""
_STILL_IN_RUN = ("/run/current-system", "/run/opengl-driver", "/run/booted-system")
"""NixOS has its programs there."""
_SECRETS = (
    ".ssh", ".gnupg", ".pki", ".password-store", ".local/share/keyrings", ".netrc",
    ".git-credentials", ".config/git/credentials", ".aws", ".azure", ".config/gcloud", ".kube",
    ".docker", ".config/containers", ".config/gh", ".config/glab-cli", ".config/hub", ".config/op",
    ".config/rclone", ".config/sops", ".vault-token", ".terraform.d", ".npmrc", ".pypirc",
    ".cargo/credentials", ".cargo/credentials.toml", ".m2/settings.xml", ".gem/credentials",
    ".pgpass", ".my.cnf", ".mozilla", ".thunderbird", ".config/google-chrome", ".config/chromium",
    ".config/BraveSoftware", ".config/microsoft-edge", ".config/Signal", ".config/Slack",
    ".config/systemd", ".bash_history", ".zsh_history", ".python_history", ".node_repl_history",
    ".psql_history", ".config/sfad", ".local/state/sfad", ".local/share/containers",
    ".vscode-server", ".cursor-server",
)  # fmt: skip
"""In the home directory: keys, tokens, browsers' sessions, what a user has typed."""
_OF_ROOT = (
    "/etc/sfad", "/var/lib/sfad", "/boot", "/sys/kernel/debug", "/sys/kernel/tracing",
    "/sys/kernel/security", "/sys/firmware", "/sys/fs/bpf", "/sys/fs/pstore", "/var/lib/docker",
    "/var/lib/containerd", "/var/lib/kubelet", "/var/spool", "/var/log",
)  # fmt: skip
"""What root can read as its owner, without any capability, beside `_not_for_all`."""


def can_be_empty(home: str) -> bool:
    """Return whether a home directory can be replaced by an empty one. Users of services have one
    with programs in it, or /dev."""
    needed = (*SYSTEM, *PRIVATE, "/dev", "/proc")
    return os.path.basename(home) not in ("bin", "sbin") and not any(
        within(path, home) for path in needed
    )


def secrets(
    homes: Sequence[str], agents: Sequence[str], places: Sequence[str], *, root: bool
) -> list[str]:
    """Return the secrets that there are. `agents`: files of other agent programs, below the home
    directory; `places`: where a user says that they are."""
    found = [f"{home}/{name}" for home in homes for name in (*_SECRETS, *agents)]
    if root:
        found += [*_OF_ROOT, *_not_for_all("/etc"), *_not_for_all("/usr/local/etc")]
    return [os.path.realpath(path) for path in (*found, *places) if os.path.lexists(path)]


def _not_for_all(top: str) -> Iterator[str]:
    """Yield what is below a directory and not readable for all users: keys, hashes of passwords,
    settings with passwords."""
    try:
        entries = list(os.scandir(top))
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():
            continue
        mode = entry.stat(follow_symlinks=False).st_mode
        if not mode & 0o004:
            yield entry.path
        elif entry.is_dir():
            yield from _not_for_all(entry.path)


def make(names: Iterable[str]) -> None:
    """Make what is missing of an agent's files, because no program can make them in a read-only
    directory. Raises `OSError`."""
    for name in names:
        if not name.endswith(".json"):
            os.makedirs(name, mode=0o700, exist_ok=True)
        elif not os.path.exists(name):
            with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write("{}\n")


def own_writable(names: Iterable[str], tops: Sequence[str]) -> list[str]:
    """Return the real paths of an agent's own files, beside what is writable anyway. Raise
    `ForbiddenError` for a link that the run could have made."""
    found = [(name, *followed(name)) for name in names]
    changeable = [*tops, *(real for _, real, _ in found)]
    for name, real, links in found:
        for link in links:
            if within_any(link, changeable):
                raise ForbiddenError(
                    f"{name} leads to {real} by {link}, which the run can change: "
                    f"make {link} no link"
                )
    return [real for _, real, _ in found]


def writable(
    asked: Sequence[str],
    own: Sequence[str],
    directory: str,
    protected: Sequence[str],
    closed: Sequence[str],
) -> list[str]:
    """Return what can be written, without what lies below another such path. `own`: the agent's own
    files. `directory`: the working directory, which is writable unless secrets are below it.
    `protected`: what must not be rearranged from above. `closed`: where nothing is writable. Raise
    `ForbiddenError`."""
    for path in (directory, *asked):
        real, links = followed(path)
        if links:
            raise ForbiddenError(
                f"{path} is to be writable, but leads to {real} by the link {links[0]}: "
                f"name {real} itself"
            )
    tops = [os.path.normpath(path) for path in (directory, *asked)]
    found = tops[:1]
    if (
        tops[0] == "/"
        or within_any(tops[0], closed)
        or any(within(path, tops[0]) for path in protected)
    ):
        found = []
    own_reals = own_writable(own, tops)
    make(own)
    for path, real in [*zip(asked, tops[1:], strict=True), *zip(own_reals, own_reals, strict=True)]:
        if not os.path.lexists(real):
            raise ForbiddenError(f"{path} is to be writable, and does not exist: make it first")
        if within_any(real, closed):
            raise ForbiddenError(f"{path} cannot be writable: it belongs to the daemon")
        below = next((each for each in protected if each != real and within(each, real)), None)
        if below is not None:
            raise ForbiddenError(
                f"{path} cannot be writable, because {below} in it is protected: "
                "name directories within it"
            )
        found.append(real)
    return topmost(found)


def visible_of_private() -> Iterator[str]:
    """Yield what stays visible, read-only, in the directories of the sandbox's own: the addresses
    of name servers, and programs."""
    servers = os.path.realpath("/etc/resolv.conf")
    if within_any(servers, PRIVATE) and os.path.isfile(servers):
        yield servers
    yield from (path for path in _STILL_IN_RUN if os.path.isdir(path))
