"""opencode (1.18): where its calls go.

Its configuration is merged, the later taking precedence: `~/.config/opencode/{config.json,opencode.json,opencode.jsonc}`,
OPENCODE_CONFIG, `opencode.json(c)` from the top of the project down to the working directory, those in `.opencode` there and in the
home directory and in OPENCODE_CONFIG_DIR, OPENCODE_CONFIG_CONTENT, and what an administrator sets in `/etc/opencode`.

`provider.NAME.options.baseURL` is a provider's address. Without it, those of Anthropic and OpenAI follow their variables. So the
others, and those that have an address, are led by OPENCODE_CONFIG_CONTENT. A provider that is named there counts as one that the
person wants, so those are named that have a key, and all of them.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..protocol.known import KEYS
from .files import Read, at, json_file, json_object, merged, upwards
from .setup import GATEWAY, Setup, Surroundings, TreeUpstream

CONTENT = "OPENCODE_CONFIG_CONTENT"
_MANAGED = "/etc/opencode"
_NAMES = ("opencode.json", "opencode.jsonc")
FOLLOWED = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL")


class KnownProvider(NamedTuple):
    package: str
    keys: tuple[str, ...]
    url: str | None = None


_COMPATIBLE = "@ai-sdk/openai-compatible"
PROVIDERS: dict[str, KnownProvider] = {
    "anthropic": KnownProvider("@ai-sdk/anthropic", ("ANTHROPIC_API_KEY",)),
    "openai": KnownProvider("@ai-sdk/openai", ("OPENAI_API_KEY",)),
    "cerebras": KnownProvider("@ai-sdk/cerebras", ("CEREBRAS_API_KEY",), "https://api.cerebras.ai/v1"),
    "deepseek": KnownProvider(_COMPATIBLE, ("DEEPSEEK_API_KEY",), "https://api.deepseek.com"),
    "google": KnownProvider(
        "@ai-sdk/google",
        ("GOOGLE_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY", "GEMINI_API_KEY"),
        "https://generativelanguage.googleapis.com/v1beta",
    ),
    "groq": KnownProvider("@ai-sdk/groq", ("GROQ_API_KEY",), "https://api.groq.com/openai/v1"),
    "minimax": KnownProvider("@ai-sdk/anthropic", ("MINIMAX_API_KEY",), "https://api.minimax.io/anthropic/v1"),
    "mistral": KnownProvider("@ai-sdk/mistral", ("MISTRAL_API_KEY",), "https://api.mistral.ai/v1"),
    "moonshotai": KnownProvider(_COMPATIBLE, ("MOONSHOT_API_KEY",), "https://api.moonshot.ai/v1"),
    "openrouter": KnownProvider("@openrouter/ai-sdk-provider", ("OPENROUTER_API_KEY",), "https://openrouter.ai/api/v1"),
    "togetherai": KnownProvider("@ai-sdk/togetherai", ("TOGETHER_API_KEY",), "https://api.together.xyz/v1"),
    "xai": KnownProvider("@ai-sdk/xai", ("XAI_API_KEY",), "https://api.x.ai/v1"),
    "zai-coding-plan": KnownProvider(_COMPATIBLE, ("ZHIPU_API_KEY",), "https://api.z.ai/api/coding/paas/v4"),
}
"""Those of its catalogue that are led without an address in the configuration."""

_APIS = {
    "@ai-sdk/anthropic": "anthropic",
    "@ai-sdk/openai": "openai-responses",
    "@ai-sdk/google": "gemini",
    "@ai-sdk/azure": "openai-responses",
    _COMPATIBLE: "openai-chat",
    "@openrouter/ai-sdk-provider": "openai-chat",
    **dict.fromkeys((f"@ai-sdk/{name}" for name in ("cerebras", "groq", "mistral", "togetherai", "xai")), "openai-chat"),
}
_SIGNED = "whose requests are signed for its own host"
_ELSEWHERE = {
    "amazon-bedrock": f"Amazon Bedrock, {_SIGNED}",
    "google-vertex": f"Vertex AI, {_SIGNED}",
    "google-vertex-anthropic": f"Vertex AI, {_SIGNED}",
    "github-copilot": "GitHub Copilot, whose address is fixed",
    "opencode": "OpenCode Zen, which has several APIs at one address",
    "opencode-go": "OpenCode Go, which has several APIs at one address",
}
_FAMILIES = {"anthropic": "anthropic", "openai": "openai", "gemini": "google"}
"""Upstreams of the config, and opencode's names of their providers."""
_FREE = "opencode"
"""The provider that is there without a key."""
_REFERENCE = re.compile(r"\{env:([^}]+)\}|\$\{([^}]+)\}")


class OpencodeSettings(NamedTuple):
    """What a person's files and variables say."""

    config: dict[str, Any]
    managed: dict[str, Any]
    logins: dict[str, Any]
    env: Mapping[str, str]

    @property
    def providers(self) -> list[str]:
        """The providers that the program will offer, as far as they are known here."""
        keyed = [name for name, provider in PROVIDERS.items() if any(self.env.get(key) for key in provider.keys)]
        return sorted({*keyed, *self.logins, *(self.config.get("provider") or {}), *(self.managed.get("provider") or {})})


def setup(surroundings: Surroundings) -> Setup:
    """Return how opencode is led through the gateway. Raises `UnreadableError`."""
    found = _found(surroundings)
    if (elsewhere := _elsewhere(found)) is not None:
        return Setup("opencode", direct=f"opencode uses {elsewhere}")
    upstreams = tuple(upstream for name in found.providers if (upstream := _upstream(name, found)) is not None)
    # those of its variables, which are set for any program
    if not upstreams:
        return Setup("opencode")
    merged_ = ((CONTENT, json.dumps(_content(found, upstreams))),)
    return Setup("opencode", upstreams, merged=merged_, keys=_keys(found, upstreams))


def _keys(found: OpencodeSettings, upstreams: Sequence[TreeUpstream]) -> tuple[str, ...]:
    """Return the variables that hold keys for addresses of the configuration."""
    entries = {name: at(found.config, "provider", name) for name in (each.name.removeprefix("opencode-") for each in upstreams)}
    texts = [json.dumps(entry) for name, entry in entries.items() if _chosen_url(entry) is not None]
    names = [variable for text in texts for pair in _REFERENCE.findall(text) for variable in pair if variable]
    families = [family for family, provider in _FAMILIES.items() if _chosen_url(entries.get(provider)) is not None]
    return tuple(dict.fromkeys((*names, *(variable for family in families for variable in KEYS[family]))))


def _found(surroundings: Surroundings) -> OpencodeSettings:
    env, read = surroundings.env, surroundings.read
    own, logins = json_object(env.get(CONTENT, ""), CONTENT), env.get("OPENCODE_AUTH_CONTENT")
    data = env.get("XDG_DATA_HOME") or f"{_home(env)}/.local/share"
    return OpencodeSettings(
        merged(*(json_file(read, path) for path in _files(surroundings)), own),
        merged(*(json_file(read, f"{_MANAGED}/{name}") for name in _NAMES)),
        json_object(logins, "OPENCODE_AUTH_CONTENT") if logins else json_file(read, f"{data}/opencode/auth.json"),
        env,
    )


def _home(env: Mapping[str, str]) -> str:
    return env.get("HOME") or "/"


def _files(surroundings: Surroundings) -> Iterator[str]:
    env, read = surroundings.env, surroundings.read
    general = f"{env.get('XDG_CONFIG_HOME') or f'{_home(env)}/.config'}/opencode"
    yield from (f"{general}/{name}" for name in ("config.json", *_NAMES))
    if chosen := env.get("OPENCODE_CONFIG"):
        yield os.path.join(surroundings.cwd, chosen)
    project = list(_project(surroundings.cwd, read))[::-1]
    if not env.get("OPENCODE_DISABLE_PROJECT_CONFIG"):
        yield from (f"{directory}/{name}" for directory in project for name in _NAMES)
    for directory in (*(f"{directory}/.opencode" for directory in (*project, _home(env))), env.get("OPENCODE_CONFIG_DIR")):
        if directory:
            yield from (f"{directory}/{name}" for name in _NAMES)


def _project(cwd: str, read: Read) -> Iterator[str]:
    """Yield the working directory and those above it, up to the top of its git repository."""
    for directory in upwards(cwd):
        yield directory
        if any(read(f"{directory}/{name}") is not None for name in (".git", ".git/HEAD")):
            return


def _elsewhere(found: OpencodeSettings) -> str | None:
    """Return what the program uses that cannot be led: for its model, or for all that it has."""
    model = at(found.managed, "model") or at(found.config, "model")
    names = [model.partition("/")[0]] if isinstance(model, str) else found.providers
    reasons = [_reason(name, found) for name in names]
    return reasons[0] if reasons and None not in reasons else None


def _reason(name: str, found: OpencodeSettings) -> str | None:
    if name == "openai" and at(found.logins, name, "type") == "oauth":
        return "a ChatGPT login, whose calls go to chatgpt.com"
    return _ELSEWHERE.get(name)


def _upstream(name: str, found: OpencodeSettings) -> TreeUpstream | None:
    """Return where a provider's calls go, if OPENCODE_CONFIG_CONTENT can lead them and the gateway can read them."""
    entry = at(found.config, "provider", name)
    known = PROVIDERS.get(name)
    api = _APIS.get(at(entry, "npm") or (known.package if known else ""))
    url = _url(name, entry, found.env)
    # an address for one model would be replaced, too
    models = [*(at(entry, "models") or {}).values(), *(at(found.managed, "provider", name, "models") or {}).values()]
    single = any(at(model, "provider") for model in models)
    fixed = at(found.managed, "provider", name, "options", "baseURL") or single or _reason(name, found)
    if api is None or url is None or fixed or (api == "anthropic" and not url.endswith("/v1")):
        return None
    return TreeUpstream(f"opencode-{name}", url, api)


def _url(name: str, entry: Any, env: Mapping[str, str]) -> str | None:
    """Return the address of a provider; `None` if it is not known, or is one of its variables."""
    if (chosen := _chosen_url(entry)) is not None:
        return _resolved(chosen, env)
    known = PROVIDERS.get(name)
    return known.url if known else None


def _chosen_url(entry: Any) -> str | None:
    chosen = at(entry, "options", "baseURL") or at(entry, "api")
    return chosen if isinstance(chosen, str) and chosen else None


def _resolved(text: str, env: Mapping[str, str]) -> str | None:
    """Return a text with the values of the variables that it names; `None` if one is not set, or it names a file."""
    names = [first or second for first, second in _REFERENCE.findall(text)]
    if "{file:" in text or any(name not in env for name in names):
        return None
    return _REFERENCE.sub(lambda match: env[match[1] or match[2]], text).rstrip("/")


def _content(found: OpencodeSettings, upstreams: Sequence[TreeUpstream]) -> dict[str, Any]:
    """Return the configuration that is merged over the person's."""
    chosen = found.config.get("provider") or found.config.get("model")
    named: dict[str, Any] = {} if chosen else {name: {} for name in (*found.providers, _FREE)}
    led = {each.name.removeprefix("opencode-"): {"options": {"baseURL": f"{GATEWAY}/{each.name}"}} for each in upstreams}
    return {"provider": {**named, **led}}
