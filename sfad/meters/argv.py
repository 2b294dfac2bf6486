"""What a command line says about the agent in it: whose it is, and which options it was given."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.naming import derive_name


def arguments(argv: Sequence[str], *names: str) -> list[str] | None:
    """The words after the program, if it goes by one of `names`, the shortest first; `None` if it does not.

    Interpreters and launchers are looked through as for a run's name: `npx -y @openai/codex exec` is a codex. Words after
    `--` are no options, and are left out. A text for a shell is not looked into: what it runs is anybody's guess.
    """
    if derive_name(argv) not in names:
        return None
    at = next((at for at, word in enumerate(argv) if names[0] in word), len(argv))
    words = list(argv[at + 1 :])
    return words[: words.index("--")] if "--" in words else words


def values(words: Sequence[str], *options: str) -> list[str]:
    """What the options were given, in order: `--model x`, `--model=x`, `-m x`, `-mx`."""
    found = []
    for word, following in zip(words, [*words, ""][1:], strict=True):
        for option in options:
            if word == option:
                found.append(following)
            elif word.startswith(f"{option}="):
                found.append(word[len(option) + 1 :])
            elif len(option) == 2 and word.startswith(option):
                found.append(word[2:])
    return found
