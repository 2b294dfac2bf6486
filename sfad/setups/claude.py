"""Claude Code (2.1.330): where its calls go.

Variables in `env` of its settings win over those of its environment. Of the settings the later take precedence:
`~/.claude/settings.json` (or that of CLAUDE_CONFIG_DIR), `.claude/settings.json` and `.claude/settings.local.json` of the working
directory, those that `--settings` names (the last, of two), and what an administrator sets in `/etc/claude-code`. A file that is
not JSON does not count.

So the address is set in the environment where no settings name one, and by `--settings` where they do. With other settings, that
would send their keys elsewhere: a run in another directory, or with another home, is then left as it is. So is one for which a
script has chosen another provider.

A key, the output of `apiKeyHelper` and a login (CLAUDE_CODE_OAUTH_TOKEN, or a subscription) pass through with the call.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..protocol.known import KEYS
from . import network, variables
from .files import at, json_file, json_object, merged
from .setup import GATEWAY, Setup, Surroundings, TreeUpstream

BASE_URL = "ANTHROPIC_BASE_URL"
ANTHROPIC = "https://api.anthropic.com"
_FOUNDRY, _RESOURCE = "ANTHROPIC_FOUNDRY_BASE_URL", "ANTHROPIC_FOUNDRY_RESOURCE"
_MANAGED = "/etc/claude-code"
_POLICIES = ("allowedProviders", "forceLoginMethod", "forceLoginOrgUUID", "forceLoginGatewayUrl")
"""Settings of an administrator with which the program does not start if its address is changed."""
_ELSEWHERE = {
    "ANTHROPIC_UNIX_SOCKET": "a Unix socket",
    "CLAUDE_CODE_CLIENT_CERT": "a client certificate, which the gateway does not have",
    "CLAUDE_CODE_USE_BEDROCK": "Amazon Bedrock, whose requests are signed for its own host",
    "CLAUDE_CODE_USE_FOUNDRY": None,
    "CLAUDE_CODE_USE_ANTHROPIC_AWS": "the Claude Platform on AWS, whose requests are signed for its own host",
    "CLAUDE_CODE_USE_ANTHROPIC_GOOGLE_CLOUD": "the Claude Platform on Google Cloud, whose logins are for its own host",
    "CLAUDE_CODE_USE_MANTLE": "Amazon Bedrock (Mantle), whose requests are signed for its own host",
    "CLAUDE_CODE_USE_VERTEX": "Vertex AI, whose logins are for its own host",
}
"""What a variable chooses; of those of providers, the first counts. `None`: an address that the gateway can ask."""
_OTHER_ADDRESS = r'(?s)(--settings=)?\s*\{.*"(ANTHROPIC_\w*BASE_URL|CLAUDE_CODE_USE_\w+)".*'
_OTHER_SETTINGS = r"(?s)--setting(s|-sources)(=.*)?"
_SETTINGS = "--settings"
_OFF = {"", "0", "false", "no", "off"}
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_NO_PROXY = {"no_proxy", "NO_PROXY"}


class ClaudeSettings(NamedTuple):
    own: dict[str, str]
    """Variables in the settings of the person and the project."""
    policies: list[str]
    """Those of an administrator."""
    managed: dict[str, str]
    """Variables in the settings of an administrator."""
    env: dict[str, str]
    """Variables that the program has without the gateway."""


def setup(surroundings: Surroundings) -> Setup:
    """Return how Claude Code is led through the gateway. Raises `UnreadableError`."""
    found = _found(surroundings)
    chosen = next((name for name in _ELSEWHERE if found.env.get(name, "").lower() not in _OFF), None)
    if chosen is not None and (elsewhere := _ELSEWHERE[chosen]) is not None:
        return Setup("claude", direct=f"Claude Code uses {elsewhere} ({chosen})")
    if (why := network.obstacle(surroundings, found.env)) is not None:
        return Setup("claude", direct=why)
    if found.policies:
        return Setup("claude", direct=f"{found.policies[0]} in {_MANAGED} lets Claude Code use no other address")
    led = _led(found, foundry=chosen is not None)
    if led is None:
        return Setup("claude", direct=f"Claude Code uses Microsoft Foundry, and neither {_FOUNDRY} nor {_RESOURCE} is set")
    if managed := led.variables.keys() & found.managed.keys():
        return Setup("claude", direct=f"{min(managed)} in {_MANAGED} leads Claude Code around the gateway")
    in_files = variables.named_in_files(surroundings._replace(env=found.env))
    if BASE_URL not in found.env and BASE_URL in led.variables.keys() & in_files:
        # what the program starts has its variables, and would send the key of the file to the gateway
        return Setup("claude", direct=f"a .env file or a profile of Anthropic's SDKs names {BASE_URL}")
    certificates = network.certificates(surroundings, found.own | found.managed)  # those of `env` are of any program
    if led.variables.keys() & found.own.keys():
        setup = _by_settings(led, surroundings)
    else:
        setup = Setup("claude", led.upstreams, env=tuple(led.variables.items()), undone_by=_OTHER_ADDRESS)
    choice = _choice(found, foundry=chosen is not None)
    keys = KEYS["anthropic"] if led.upstreams else ()
    return replace(setup, only_with=setup.only_with + choice, keys=keys, certificates=certificates)


def _choice(found: ClaudeSettings, *, foundry: bool) -> tuple[tuple[str, str], ...]:
    """Return the variables that choose where calls go, beside the addresses, where no settings have them: settings would win."""
    names = (*_ELSEWHERE, _RESOURCE) if foundry else _ELSEWHERE
    return tuple((name, found.env.get(name, "")) for name in names if name not in found.own and name not in found.managed)


def settings_file(options: Sequence[str]) -> str | None:
    """Return the file that `--settings` names; `None` if there is none. Of two options, the last counts."""
    pairs = zip(options, (*options[1:], ""), strict=False)
    values = [
        after if word == _SETTINGS else word.partition("=")[2] for word, after in pairs if word.partition("=")[0] == _SETTINGS
    ]
    return values[-1] if values and values[-1] and not values[-1].lstrip().startswith("{") else None


def choice_in(text: str) -> str | None:
    """Return a variable in settings that chooses where calls go; `None` if there is none. Raises `UnreadableError`."""
    names = _variables(json_object(text, "--settings", comments=False))
    return next((name for name in names if name in (*_ELSEWHERE, _RESOURCE) or name.endswith("_BASE_URL")), None)


class _Led(NamedTuple):
    variables: dict[str, str]
    upstreams: tuple[TreeUpstream, ...]


def _led(found: ClaudeSettings, *, foundry: bool) -> _Led | None:
    """Return the variables that lead the program, and where its calls go; `None` if that is not known."""
    if foundry:
        resource = found.env.get(_RESOURCE)
        url = found.env.get(_FOUNDRY) or (f"https://{resource}.services.ai.azure.com/anthropic" if resource else None)
        variables_ = {_FOUNDRY: f"{GATEWAY}/claude", _RESOURCE: ""}  # the program takes only one of them
    elif BASE_URL in found.own:
        url, variables_ = found.env[BASE_URL] or ANTHROPIC, {BASE_URL: f"{GATEWAY}/claude"}
    else:
        return _Led({BASE_URL: f"{GATEWAY}/anthropic"} | _reached(found), ())
    if url is None:
        return None
    return _Led(variables_ | _reached(found), (TreeUpstream("claude", url.rstrip("/"), "anthropic"),))


def _reached(found: ClaudeSettings) -> dict[str, str]:
    """Return the variables without which the program would look for the gateway behind a proxy, where its settings have a word in
    that."""
    names = {*_PROXIES, *map(str.lower, _PROXIES)}
    if not any(found.env.get(name) for name in names) or (names | _NO_PROXY).isdisjoint(found.own | found.managed):
        return {}
    hosts = found.env.get("no_proxy") or found.env.get("NO_PROXY")
    return dict.fromkeys(sorted(_NO_PROXY), f"{hosts},127.0.0.1" if hosts else "127.0.0.1")


def _by_settings(led: _Led, surroundings: Surroundings) -> Setup:
    env = surroundings.env
    return Setup(
        "claude",
        led.upstreams,
        words=("--settings", json.dumps({"env": led.variables})),
        undone_by=_OTHER_SETTINGS,
        only_with=(("HOME", env.get("HOME", "")), ("CLAUDE_CONFIG_DIR", env.get("CLAUDE_CONFIG_DIR", ""))),
        only_in=surroundings.cwd,
    )


def _found(surroundings: Surroundings) -> ClaudeSettings:
    env, read, cwd = surroundings.env, surroundings.read, surroundings.cwd
    directory = env.get("CLAUDE_CONFIG_DIR") or f"{env.get('HOME') or '/'}/.claude"
    files = dict.fromkeys((f"{directory}/settings.json", f"{cwd}/.claude/settings.json", f"{cwd}/.claude/settings.local.json"))
    own = _variables(merged(*(json_file(read, path, comments=False) for path in files)))
    administrator = merged(*(json_file(read, path, comments=False) for path in _managed(surroundings)))
    managed, policies = _variables(administrator), [name for name in _POLICIES if name in administrator]
    return ClaudeSettings(own, policies, managed, {**env, **own, **managed})


def _managed(surroundings: Surroundings) -> Iterator[str]:
    yield f"{_MANAGED}/managed-settings.json"
    directory = f"{_MANAGED}/managed-settings.d"
    yield from (f"{directory}/{name}" for name in sorted(surroundings.names(directory)) if name.endswith(".json"))


def _variables(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that settings set."""
    env = at(settings, "env")
    found = env.items() if isinstance(env, dict) else ()
    return {name: str(value) for name, value in found if isinstance(value, str | int | float)}
