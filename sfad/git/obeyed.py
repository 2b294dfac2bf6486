"""What git executes for a person's config and hooks, and which of it an isolated run may have
written.

The hooks and the programs of a config often are files of the checkout: a link to a tracked script,
`.husky`, a filter `scripts/clean`. When the work of an isolated run comes to that checkout, these
files are the run's. So git executes no hook then (`unhooked`), and nothing is brought to a checkout
in which a program of the config lies (`check`).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from .commands import At, git

_HOOKS = (
    "pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "pre-merge-commit",
    "post-merge", "post-checkout", "post-index-change", "reference-transaction",
)  # fmt: skip
"""That git executes when it commits and merges (githooks(5))."""

_PROGRAMS = re.compile(
    r"""filter\..*\.(clean|smudge|process)
    | merge\..*\.driver | mergetool\..*\.cmd
    | diff\.external | diff\..*\.(command|textconv)
    | core\.(fsmonitor|editor|pager|askpass|sshcommand|gitproxy|alternaterefscommand)
    | sequence\.editor | pager\..* | interactive\.difffilter
    | gpg\.(.*\.)?program | gpg\.ssh\.defaultkeycommand
    | credential\.(.*\.)?helper | gc\.recentobjectshook | hook\..*\.command
    | trailer\..*\.(command|cmd) | remote\..*\.(uploadpack|receivepack) | submodule\..*\.update
    | lfs\..*\.(clean|smudge|path)""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
"""Keys whose values are commands that git, or git-lfs, may execute (git-config(1))."""
_INCLUDE = re.compile(r"include\.path|includeif\..*\.path", re.IGNORECASE | re.DOTALL)
_BETWEEN = re.compile(r"""[\s'"`$(){}\[\];|&<>=:!,]+""")
"""Between the words of a command, for whatever a shell makes of it."""


def unhooked(env: Mapping[str, str], top: str | None = None) -> dict[str, str]:
    """Return an environment in which git executes no hook and no `core.fsmonitor`. `top`: it finds
    no program within that directory by PATH."""
    given = {
        "core.hooksPath": "/dev/null", "core.fsmonitor": "false",
        "submodule.recurse": "false",  # a sub-module has a config of its own
    }  # fmt: skip
    words = [env.get("GIT_CONFIG_PARAMETERS", ""), *(f"'{k}={v}'" for k, v in given.items())]
    found = {**env, "GIT_CONFIG_PARAMETERS": " ".join(filter(None, words))}
    if top is not None and "PATH" in env:
        found["PATH"] = ":".join(
            each
            for each in env["PATH"].split(":")
            if each.startswith("/") and not _is_in(each, top)
        )
    return found


def hooks(at: At) -> list[str]:
    """Return the names of the hooks that git would execute. Raise `GitError`."""
    place = os.path.join(at.cwd, git("rev-parse", "--git-path", "hooks", at=at))
    found = [name for name in _HOOKS if _is_program(f"{place}/{name}")]
    keys = (key for _, key, _ in _config(at))
    named = (key for key in keys if key.startswith("hook.") and key.endswith(".command"))
    return found + [key.removeprefix("hook.").removesuffix(".command") for key in named]


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def without(env: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return an environment in which git executes none of the hooks that a config names."""
    words = [env.get("GIT_CONFIG_PARAMETERS", "")]
    words += [shlex.quote(f"hook.{name}.enabled=false") for name in names if name not in _HOOKS]
    return {**env, "GIT_CONFIG_PARAMETERS": " ".join(filter(None, words))}


def check(at: At, top: str, files: Sequence[str]) -> str | None:
    """Return the key and the value of a command in the config that lies in the checkout `top`, or
    will when these files have come there; `None` if there is none. Also of a file of the config
    that is among them. Raise `GitError`."""
    new = {*files}
    for origin, key, value in _config(at):
        if _PROGRAMS.fullmatch(key) and (word := _within(value, top, new, at.env)) is not None:
            return f"{key} = {value} in your git config names {word}"
        paths = [origin] if origin else []
        if _INCLUDE.fullmatch(key):
            place = os.path.dirname(origin) if origin else top
            paths.append(os.path.join(place, os.path.expanduser(value)))
        for path in paths:
            if any(_changed(each, new) for each in _inside(path, top)):
                return f"your git config includes {path}"
    return None


def _config(at: At) -> Iterator[tuple[str, str, str]]:
    """Yield the file, the key and the value of all that the person's config says, each scope. The
    file is empty for what comes from elsewhere."""
    fields = git("config", "--show-origin", "--includes", "--list", "-z", at=at).split("\0")
    for origin, entry in zip(fields[::2], fields[1::2], strict=False):
        key, _, value = entry.partition("\n")
        file = origin.removeprefix("file:") if origin.startswith("file:") else ""
        yield file and os.path.join(at.cwd, file), key, value


def _within(command: str, top: str, new: set[str], env: Mapping[str, str]) -> str | None:
    """Return the word of a command that is, or will be, in the checkout."""
    texts = [command, _expanded(command, env)]
    words = [each for text in texts for each in _words(text)]
    if "$" in command or "`" in command:  # as in $(git rev-parse --show-toplevel)/tool
        words += [each.lstrip("/") for each in words]
    program = texts[1].split(maxsplit=1)[:1]
    for word in dict.fromkeys(words):
        if word in program and "/" not in word:
            found = shutil.which(word, path=env.get("PATH"))
            path = found and os.path.join(top, found)
        else:
            path = word and os.path.join(top, word)
        if path and any(
            os.path.lexists(path) or _changed(each, new) for each in _inside(path, top)
        ):
            return word
    return None


def _expanded(command: str, env: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        return env.get(found[1] or found[2], "")

    expanded = re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, command)
    return re.sub(r"(?:(?<=[\s'\"=])|^)~(?=/)", lambda _: env.get("HOME", "~"), expanded)


def _words(text: str) -> list[str]:
    found = _BETWEEN.split(text)
    with suppress(ValueError):  # a quote that does not end
        found += shlex.split(text)
    return [each for each in found if each not in ("", "-", ".")]  # jq .


def _is_in(path: str, top: str) -> bool:
    return next(_inside(path, top), None) is not None


def _inside(path: str, top: str) -> Iterator[str]:
    """Yield what a path is called from the top of a checkout, as it is written and with links
    resolved, if that is within and not git's own."""
    real = os.path.realpath(top)
    for each in dict.fromkeys((os.path.normpath(path), os.path.realpath(path))):
        for above in dict.fromkeys((os.path.normpath(top), real)):
            name = os.path.relpath(each, above)
            if name.split("/")[0] not in ("..", ".git"):
                yield name


def _changed(name: str, new: set[str]) -> bool:
    parts = name.split("/")
    if any("/".join(parts[: count + 1]) in new for count in range(len(parts))):
        return True
    return any(each.startswith(f"{name}/") for each in new)
