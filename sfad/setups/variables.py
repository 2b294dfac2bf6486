"""Variables in which any program may look for the address of its model.

The gateway never sends a credential to another host than the program itself would have. So a variable that the person has set
keeps its name, and the gateway asks what it named; and one that is not set leads to the gateway only if no other variable of the
same provider is set, which the program might have obeyed instead.
"""

from collections.abc import Iterator, Mapping

from ..protocol.known import KEYS
from .files import dotenv, json_file, upwards
from .setup import GATEWAY, Setup, Surroundings, TreeUpstream

VARIABLES: dict[str, tuple[str, str]] = {
    "ANTHROPIC_BASE_URL": ("anthropic", "anthropic"),
    "ANTHROPIC_API_BASE": ("anthropic-api-base", "anthropic"),
    "OPENAI_BASE_URL": ("openai", "openai-responses"),
    "OPENAI_API_BASE": ("openai-api-base", "openai-responses"),
    "GOOGLE_GEMINI_BASE_URL": ("gemini", "gemini"),
}
"""By variable: the upstream that it names, and its API. The first of a provider has the upstream of the config if it is not set."""

_PROVIDERS = (
    ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"),
    ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    ("GOOGLE_GEMINI_BASE_URL",),
)


def setup(surroundings: Surroundings) -> Setup:
    """Return what is set for a program that has no setup of its own. Raises `UnreadableError`."""
    upstreams, env = [], {}
    for variable, url in base_urls(surroundings.env):
        name, api = VARIABLES[variable]
        upstreams.append(TreeUpstream(name, url, api))
        env[variable] = f"{GATEWAY}/{name}"
    files = named_in_files(surroundings)
    for first, *others in _PROVIDERS:
        if first not in env and not any(other in env for other in others) and files.isdisjoint((first, *others)):
            env[first] = f"{GATEWAY}/{VARIABLES[first][0]}"
    elsewhere = [VARIABLES[first][0] for first, *_ in _PROVIDERS if first not in env]
    keys = tuple(variable for provider in elsewhere for variable in KEYS[provider])
    return Setup("", tuple(upstreams), env=tuple(env.items()), keys=keys)


def named_in_files(surroundings: Surroundings) -> set[str]:
    """Return the variables in `.env` files, which many programs load, and ANTHROPIC_BASE_URL for a profile of Anthropic's SDKs with
    an address. They would find a variable that is set instead, and send the key of the file elsewhere."""
    places = [*upwards(surroundings.cwd), surroundings.env.get("HOME", "/")]
    paths = (f"{place}/{name}" for place in places for name in (".env", ".gemini/.env"))
    found = {name for path in paths for name in dotenv(surroundings.read(path))}
    return found | {"ANTHROPIC_BASE_URL"} if _profile_url(surroundings) else found


def _profile_url(surroundings: Surroundings) -> object:
    """Return the address in the profile that Anthropic's SDKs, and Claude Code, use if ANTHROPIC_BASE_URL is not set."""
    env, read = surroundings.env, surroundings.read
    directory = env.get("ANTHROPIC_CONFIG_DIR") or f"{env.get('XDG_CONFIG_HOME') or env.get('HOME', '') + '/.config'}/anthropic"
    name = env.get("ANTHROPIC_PROFILE") or (read(f"{directory}/active_config") or b"").decode(errors="replace").strip() or "default"
    return json_file(read, f"{directory}/configs/{name}.json", comments=False).get("base_url")


def base_urls(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each of the variables that is set, and its value without the slash at its end."""
    for variable in VARIABLES:
        if url := env.get(variable, "").rstrip("/"):
            yield variable, url
