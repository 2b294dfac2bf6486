"""The loop identity of a command that was not named (SPEC section 2): what a person would call the agent.

Looks through interpreters and launchers: `python x.py` is `x`, `npx codex` is `codex`, `env A=1 nice claude` is `claude`,
`sh -c TEXT` is `sh-` and eight hex digits of its hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""What a name may look like."""

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "busybox"})
_INTERPRETERS = frozenset(
    {
        "python",
        "pypy",
        "node",
        "nodejs",
        "ruby",
        "perl",
        "php",
        "bun",
        "deno",
        "lua",
        "Rscript",
        "java",
        "tsx",
    }
)
_LAUNCHERS = frozenset(
    {"env", "nice", "nohup", "setsid", "stdbuf", "time", "ionice", "chrt", "taskset", "npx", "bunx", "uvx", "pipx", "timeout",
     "unbuffer", "doas", "sudo", "exec", "command"}
)  # fmt: skip
_SUBCOMMANDS = {
    "uv": "run",
    "poetry": "run",
    "pipenv": "run",
    "pixi": "run",
    "npm": "exec",
    "pnpm": "exec",
    "yarn": "exec",
}
_VALUED = frozenset(
    {"-u", "-C", "-S", "-n", "-c", "-k", "-s", "-p", "-o", "-e", "-i", "-W", "-X", "-r", "--import", "--require", "--signal",
     "--kill-after", "--package", "--with", "--from", "--python", "--adjustment", "--loader", "-t", "-jar"}
)  # fmt: skip
_SUFFIX = re.compile(r"\.(py|pyw|pyz|sh|bash|zsh|js|mjs|cjs|ts|mts|cts|tsx|rb|pl|php|lua|jar|exe)$")
_VERSION = re.compile(r"[0-9][0-9.]*$")


def derive_name(argv: Sequence[str]) -> str:
    """The name of a command. Never empty; always matches `NAME`."""
    words = list(argv)
    while words:
        program = _base(words[0])
        inner = _look_inside(program, words[1:])
        if inner is None:
            return _clean(program)
        if isinstance(inner, str):
            return _clean(inner)
        words = inner
    return "agent"


def _look_inside(program: str, rest: list[str]) -> list[str] | str | None:
    """What the program runs: a command to look at again, a name, or `None` if the program is the agent itself."""
    plain = _VERSION.sub("", program) or program
    if plain in _SHELLS:
        return _of_shell(plain, rest)
    if plain in _INTERPRETERS:
        return _of_interpreter(rest)
    if _SUBCOMMANDS.get(program) in rest[:1]:
        return _skip_options(rest[1:], assignments=False)
    if program in _LAUNCHERS:
        return _of_launcher(program, rest)
    return None


def _of_shell(shell: str, rest: list[str]) -> list[str] | str | None:
    for index, word in enumerate(rest):
        if word.startswith("-") and not word.startswith("--") and "c" in word[1:] and index + 1 < len(rest):
            text = rest[index + 1].encode(errors="surrogateescape")
            return f"sh-{hashlib.sha256(text).hexdigest()[:8]}"
        if not word.startswith(("-", "+")):
            return rest[index:] if shell == "busybox" else _base(word)
    return None


def _of_interpreter(rest: list[str]) -> str | None:
    words = iter(rest)
    for word in words:
        if word == "-m":
            return next(words, "").split(".")[0] or None
        if word in {"-c", "-e", "--eval", "-p"}:
            text = next(words, "").encode(errors="surrogateescape")
            return f"code-{hashlib.sha256(text).hexdigest()[:8]}"
        if word == "-jar":
            return _base(next(words, "")) or None
        if word in _VALUED:
            next(words, None)
        elif word not in {"run", "exec"} and not word.startswith("-"):
            return _base(word)
    return None


def _of_launcher(program: str, rest: list[str]) -> list[str] | None:
    inner = _skip_options(rest, assignments=program == "env")
    if program in {"timeout", "chrt", "taskset"}:
        inner = inner[1:]
    if program == "pipx" and inner[:1] == ["run"]:
        inner = inner[1:]
    if program in {"npx", "bunx", "uvx", "pipx"} and inner:
        return [_package(inner[0]), *inner[1:]]
    return inner or None


def _skip_options(words: list[str], *, assignments: bool) -> list[str]:
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return words[index + 1 :]
        if word.startswith("-"):
            index += 2 if word in _VALUED else 1
        elif assignments and "=" in word:
            index += 1
        else:
            break
    return words[index:]


def _package(spec: str) -> str:
    """`@openai/codex@latest` → `codex`."""
    return spec.rsplit("/", 1)[-1].split("@")[0].split("==")[0] or spec


def _base(path: str) -> str:
    return _SUFFIX.sub("", path.rstrip("/").rsplit("/", 1)[-1])


def _clean(name: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:64]
    return cleaned or "agent"
