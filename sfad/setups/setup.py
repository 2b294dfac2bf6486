"""How one agent program is led through the gateway, and where its calls would go without it."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

GATEWAY = "{gateway}"
"""Stands for the gateway's address, which a run has from its launch on."""


class TreeUpstream(Struct, frozen=True):
    """Where calls of a tree go through the gateway, beside the upstreams of the config, or instead of one of the same name."""

    name: str
    """The first part of the path at the gateway."""
    url: str
    """What the program itself would have called, without a slash at its end."""
    api: str
    """The format of the API: `anthropic`, `openai-responses`, `openai-chat` or `gemini`."""


class Setup(Struct, frozen=True, omit_defaults=True):
    """How a program is led through the gateway."""

    program: str
    """Empty: any program that has no setup of its own."""
    upstreams: tuple[TreeUpstream, ...] = ()
    words: tuple[str, ...] = ()
    """Options to put right after the program's own word in its command; `{gateway}` stands for the gateway's address."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables to set, with `{gateway}` as in `words`."""
    unset: tuple[str, ...] = ()
    """Variables to remove."""
    direct: str | None = None
    """Why it cannot use the gateway. It is then left as it is."""
    merged: tuple[tuple[str, str], ...] = ()
    """Variables that hold an object of JSON, and what to merge into it, with `{gateway}` as in `words`."""
    undone_by: str | None = None
    """Matches a word of a command that has settings of its own. Such a run is left as it is, and so is one for which this does not
    hold:"""
    only_with: tuple[tuple[str, str], ...] = ()
    """Values of variables; empty: not set."""
    only_in: str | None = None
    """The working directory."""
    keys: tuple[str, ...] = ()
    """Variables whose keys are for addresses of the person's own. They stay, even if the gateway has a key of that provider."""
    certificates: tuple[str, ...] = ()
    """Files of certificates that the gateway must trust for its calls."""
    profiles: tuple[tuple[str, "Setup"], ...] = ()
    """By the name of a profile: the setup that holds instead where a command chooses it."""


class Surroundings(NamedTuple):
    """What a person has when starting a root."""

    env: Mapping[str, str]
    cwd: str
    read: Callable[[str], bytes | None]
    """Returns a file's content; `None` if there is none that the person may read. Raises `UnreadableError` for one that the
    person's programs may read, and the daemon does not."""
    daemon_env: Mapping[str, str]
    """Of the gateway's process: its proxy and its certificates are what calls through the gateway use."""
    names: Callable[[str], Sequence[str]] = lambda _directory: ()
    """Returns the names in a directory; none if it cannot be read."""
