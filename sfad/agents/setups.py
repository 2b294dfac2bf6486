"""How an agent program is routed through the gateway, and what settings, proxies and variables say
of where its calls go."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from ..protocol.known import KEYS

# ---- How one agent program is routed through the gateway, and where its calls would go without it


GATEWAY = "{gateway}"
"""Stands for the gateway's address, which a run has from its launch on."""


def savable(text: str) -> str:
    """Return a text as it is kept with a tree, which takes UTF-8 only: half a surrogate pair, and a
    byte that is not UTF-8, as `\\uNNNN`."""
    return text.encode(errors="backslashreplace").decode()


class TreeUpstream(Struct, frozen=True):
    """Where calls of a tree go through the gateway, beside the upstreams of the config, or instead
    of one of the same name."""

    name: str
    """The first part of the path at the gateway."""
    url: str
    """What the program itself would have called, without a slash at its end."""
    api: str
    """The format of the API: `anthropic`, `openai-responses`, `openai-chat` or `gemini`."""


class Setup(Struct, frozen=True, omit_defaults=True):
    """How a program is routed through the gateway."""

    program: str
    """Empty: any program that has no setup of its own."""
    upstreams: tuple[TreeUpstream, ...] = ()
    words: tuple[str, ...] = ()
    """Options to put right after the program's own word in its command; `{gateway}` stands for the
    gateway's address."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables to set, with `{gateway}` as in `words`."""
    unset: tuple[str, ...] = ()
    """Variables to remove."""
    direct: str | None = None
    """Why it cannot use the gateway. It is then left as it is."""
    merged: tuple[tuple[str, str], ...] = ()
    """Variables that hold an object of JSON, and what to merge into it, with `{gateway}` as in
    `words`."""
    appended: tuple[tuple[str, str], ...] = ()
    """Variables that hold options, and one to append to them, with `{gateway}` as in `words`."""
    undone_by: str | None = None
    """Matches a word of a command that has settings of its own. Such a run is left as it is, and so
    is one for which this does not hold:"""
    only_with: tuple[tuple[str, str], ...] = ()
    """Values of variables; empty: not set."""
    only_in: str | None = None
    """The working directory."""
    keys: tuple[str, ...] = ()
    """Variables whose keys are for addresses of the person's own. They stay, even if the gateway
    has a key of that provider."""
    certificates: tuple[str, ...] = ()
    """Files of certificates that the gateway must trust for its calls."""
    profiles: tuple[tuple[str, "Setup"], ...] = ()
    """By the name of a profile: the setup that holds instead where a command chooses it."""
    account: str = ""
    """A hash of the credential of its login, where its settings have one."""


class Person(NamedTuple):
    """What a person has when starting a root."""

    env: Mapping[str, str]
    cwd: str
    read: Callable[[str], bytes | None]
    """Returns a file's content; `None` if there is none that the person may read. Raises
    `UnreadableError` for one that the person's programs may read, and the daemon does not."""
    daemon_env: Mapping[str, str]
    """Of the gateway's process: its proxy and its certificates are what calls through the gateway
    use."""
    names: Callable[[str], Sequence[str]] = lambda _directory: ()
    """Returns the names in a directory; none if it cannot be read."""


# ---- Settings in files: JSON with comments, TOML, and `.env` files


_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])')
_VARIABLE = re.compile(
    r"""^\s*(?:export\s+)?([\w.-]+)\s*=[ \t]*"""
    r"""(?:'((?:\\'|[^'])*)'|"((?:\\"|[^"])*)"|([^\r\n]*?))[ \t]*(?:\#[^\r\n]*)?$""",
    re.MULTILINE,
)

Read = Callable[[str], bytes | None]


class UnreadableError(Exception):
    """A file of settings makes no sense, or cannot be read. The message names it."""


def json_object(text: str, source: str, *, comments: bool = True) -> dict[str, Any]:
    """Return an object of JSON. `comments`: it may have comments and last commas. Raises
    `UnreadableError`."""
    for pattern, instead in ((_COMMENT, " "), (_LAST_COMMA, "")) if comments else ():
        text = pattern.sub(lambda found, instead=instead: found[1] or instead, text)  # type: ignore[misc]
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{source} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnreadableError(f"{source} is not a JSON object")
    return found


def json_file(read: Read, path: str, *, comments: bool = True) -> dict[str, Any]:
    """Return the object in a file of JSON; empty if there is none. Raises `UnreadableError`."""
    data = read(path)
    return (
        {}
        if data is None
        else json_object(
            data.decode(errors="replace").removeprefix("\ufeff"), path, comments=comments
        )
    )


def toml_file(read: Read, path: str) -> dict[str, Any]:
    """Return the table in a file of TOML; empty if there is none. Raises `UnreadableError`."""
    try:
        return tomllib.loads((read(path) or b"").decode(errors="replace").removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{path} cannot be read as TOML: {error}") from None


def dotenv(data: bytes | None) -> dict[str, str]:
    """Return the variables that a `.env` file sets."""
    found = _VARIABLE.finditer((data or b"").decode(errors="replace").removeprefix("\ufeff"))
    return {
        name: next(filter(None, values), "")
        for name, *values in (match.groups() for match in found)
    }


def merged(*objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects merged into each other; the later takes precedence."""
    result: dict[str, Any] = {}
    for each in objects:
        for key, value in each.items():
            old = result.get(key)
            result[key] = (
                merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
            )
    return result


def at(settings: Any, *keys: str) -> Any:
    """Return the value at a path of keys; `None` if there is none."""
    for key in keys:
        settings = settings.get(key) if isinstance(settings, dict) else None
    return settings


def upwards(directory: str) -> Iterator[str]:
    """Yield a directory and those above it, up to the root."""
    while True:
        yield directory
        above = directory.rpartition("/")[0] or "/"
        if above == directory:
            return
        directory = above


# ---- Proxies and certificates: whether calls through the gateway reach an upstream in the way in
# which a program would
#
# The gateway asks upstreams with the proxy of its own environment, and trusts the authorities that
# this names. It also trusts those that a person's environment names, because it is a process of
# this person.


_PROXIES = ("https_proxy", "http_proxy", "all_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_SET_IT = "set it in the daemon's environment, and restart the daemon"


def obstacle(person: Person, env: Mapping[str, str]) -> str | None:
    """Return why the gateway cannot make a call as a program with these variables does; `None` if
    it can."""
    for name in _PROXIES:
        own = _proxy(env, name)
        if own and own != _proxy(person.daemon_env, name):  # it may hold a password
            return f"the gateway would use another proxy than {name.upper()} here names: {_SET_IT}"
    if env.get("NODE_TLS_REJECT_UNAUTHORIZED") == "0":
        return "the gateway checks certificates, and NODE_TLS_REJECT_UNAUTHORIZED is 0 here"
    return None


def certificates(person: Person, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the files of certificates that the gateway must trust for calls of a program with
    these variables."""
    found = (path for variable in _CERTIFICATES if (path := env.get(variable)))
    return tuple(
        dict.fromkeys(path for path in found if path != person.daemon_env.get("SSL_CERT_FILE"))
    )


def _proxy(env: Mapping[str, str], name: str) -> str:
    if (env.get("no_proxy") or env.get("NO_PROXY") or "").strip() == "*":
        return ""
    return env.get(name) or env.get(name.upper()) or ""


# ---- Variables in which any program may look for the address of its model
#
# The gateway never sends a credential to another host than the program itself would have. So a
# variable that the person has set keeps its name, and the gateway asks what it named; and one that
# is not set leads to the gateway only if no other variable of the same provider is set, which the
# program might have obeyed instead.


VARIABLES: dict[str, tuple[str, str]] = {
    "ANTHROPIC_BASE_URL": ("anthropic", "anthropic"),
    "ANTHROPIC_API_BASE": ("anthropic-api-base", "anthropic"),
    "OPENAI_BASE_URL": ("openai", "openai-responses"),
    "OPENAI_API_BASE": ("openai-api-base", "openai-responses"),
    "GOOGLE_GEMINI_BASE_URL": ("gemini", "gemini"),
}
"""By variable: the upstream that it names, and its API. The first of a provider has the upstream of
the config if it is not set."""

_PROVIDERS = (
    ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"),
    ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    ("GOOGLE_GEMINI_BASE_URL",),
)


def setup(person: Person) -> Setup:
    """Return what is set for a program that has no setup of its own. Raises `UnreadableError`."""
    upstreams, env = [], {}
    for variable, url in base_urls(person.env):
        name, api = VARIABLES[variable]
        upstreams.append(TreeUpstream(name, url, api))
        env[variable] = f"{GATEWAY}/{name}"
    files = named_in_files(person)
    for first, *others in _PROVIDERS:
        if (
            first not in env
            and not any(other in env for other in others)
            and files.isdisjoint((first, *others))
        ):
            env[first] = f"{GATEWAY}/{VARIABLES[first][0]}"
    elsewhere = [VARIABLES[first][0] for first, *_ in _PROVIDERS if first not in env]
    keys = tuple(variable for provider in elsewhere for variable in KEYS[provider])
    return Setup("", tuple(upstreams), env=tuple(env.items()), keys=keys)


def named_in_files(person: Person) -> set[str]:
    """Return the variables in `.env` files, which many programs load, and ANTHROPIC_BASE_URL for a
    profile of Anthropic's SDKs with an address. They would find a variable that is set instead, and
    send the key of the file elsewhere."""
    places = [*upwards(person.cwd), person.env.get("HOME", "/")]
    paths = (f"{place}/{name}" for place in places for name in (".env", ".gemini/.env"))
    found = {name for path in paths for name in dotenv(person.read(path))}
    return found | {"ANTHROPIC_BASE_URL"} if _profile_url(person) else found


def _profile_url(person: Person) -> object:
    """Return the address in the profile that Anthropic's SDKs, and Claude Code, use if
    ANTHROPIC_BASE_URL is not set."""
    env, read = person.env, person.read
    directory = (
        env.get("ANTHROPIC_CONFIG_DIR")
        or f"{env.get('XDG_CONFIG_HOME') or env.get('HOME', '') + '/.config'}/anthropic"
    )
    name = (
        env.get("ANTHROPIC_PROFILE")
        or (read(f"{directory}/active_config") or b"").decode(errors="replace").strip()
        or "default"
    )
    return json_file(read, f"{directory}/configs/{name}.json", comments=False).get("base_url")


def base_urls(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each of the variables that is set, and its value without the slash at its end."""
    for variable in VARIABLES:
        if url := env.get(variable, "").rstrip("/"):
            yield variable, url
