"""Gemini CLI (0.61): where its calls go.

Its settings, the later taking precedence: the system's defaults, `~/.gemini/settings.json`, `.gemini/settings.json` of the working
directory, the system's own. One `.env` file is read: the first that is found upwards from the working directory (`.gemini/.env`
before `.env`), then in the home directory. Variables that are set take precedence over it. In a folder that is not trusted, the
folder's settings and `.gemini/.env` do not count, and of a `.env` only keys do.

GOOGLE_GEMINI_BASE_URL is followed with an API key. With a Google account or Vertex AI, calls go elsewhere, whatever it says. Where
no setting chooses the key, the variable chooses a login that does not start without a terminal ("Invalid auth method selected"). So
then the file `gemini_with_key.json` chooses it, in the place of the system's settings.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..protocol.known import KEYS
from ..protocol.paths import not_only_of_root
from .files import at, dotenv, json_file, merged, upwards
from .setup import GATEWAY, Setup, Surroundings, TreeUpstream

BASE_URL = "GOOGLE_GEMINI_BASE_URL"
_SETTINGS = "GEMINI_CLI_SYSTEM_SETTINGS_PATH"
_UNCHOSEN = (
    "Gemini CLI takes a key elsewhere only if its settings choose the key: set security.auth.selectedType to gemini-api-key in "
    "~/.gemini/settings.json"
)
_SYSTEM = "/etc/gemini-cli"
_KEYS_ONLY = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")
_CHOICE = Path(__file__).with_name("gemini_with_key.json")
_CHOICE_COUNTS = not_only_of_root(_CHOICE) is None
"""Whether Gemini CLI takes settings from it."""
_GOOGLE_LOGIN = {"oauth-personal", "cloud-shell", "compute-default-credentials"}


def setup(surroundings: Surroundings) -> Setup:
    """Return how Gemini CLI is led through the gateway. Raises `UnreadableError`."""
    found = list(dict.fromkeys(_led(surroundings, trusted) for trusted in _trust(surroundings)))
    if len(found) == 1:
        return found[0]
    what = f"where Gemini CLI's calls go depends on whether it trusts {surroundings.cwd}; set GEMINI_CLI_TRUST_WORKSPACE"
    return Setup("gemini", direct=what)


def _led(surroundings: Surroundings, trusted: bool) -> Setup:
    settings = _settings(surroundings, trusted=trusted)
    env = _environment(surroundings, settings, trusted=trusted)
    chosen = at(settings, "security", "auth", "selectedType") or settings.get("selectedAuthType")
    login = chosen or _login_of(env)
    if login in _GOOGLE_LOGIN:
        return Setup("gemini", direct=f"Gemini CLI uses the login '{login}', whose calls go to cloudcode-pa.googleapis.com")
    if login == "vertex-ai":
        return Setup("gemini", direct="Gemini CLI uses Vertex AI, whose requests are signed for its own host")
    choice = () if chosen else _choice(surroundings)
    if choice is None:
        return Setup("gemini", direct=_UNCHOSEN)
    url = env.get(BASE_URL, "").rstrip("/")
    name = "gemini" if url == surroundings.env.get(BASE_URL, "").rstrip("/") else "gemini-cli"
    own = (TreeUpstream(name, url, "gemini"),) if url else ()
    keys = KEYS["gemini"] if own else ()
    return Setup("gemini", own, env=((BASE_URL, f"{GATEWAY}/{name}"), *choice), keys=keys)


def _choice(surroundings: Surroundings) -> tuple[tuple[str, str], ...] | None:
    """Return the variable that chooses the key; `None` if that would replace other settings, or not count."""
    system = (f"{_SYSTEM}/settings.json", f"{_SYSTEM}/system-defaults.json")
    taken = _SETTINGS in surroundings.env or any(surroundings.read(path) is not None for path in system)
    return ((_SETTINGS, str(_CHOICE)),) if _CHOICE_COUNTS and not taken else None


def _login_of(env: Mapping[str, str]) -> str | None:
    """Return the login, where no setting chooses one; `None` for a key."""
    if env.get("GOOGLE_GENAI_USE_GCA") == "true":
        return "oauth-personal"
    if env.get("GOOGLE_GENAI_USE_VERTEXAI") == "true":
        return "vertex-ai"
    if env.get(BASE_URL) or env.get("GEMINI_API_KEY"):
        return None
    if env.get("CLOUD_SHELL") == "true" or env.get("GEMINI_CLI_USE_COMPUTE_ADC") == "true":
        return "compute-default-credentials"
    return None


def _home(env: Mapping[str, str]) -> str:
    return env.get("GEMINI_CLI_HOME") or env.get("HOME") or "/"


def _trust(surroundings: Surroundings) -> tuple[bool, ...]:
    """Return whether the program trusts the working directory; both, where a list of folders or a person decides."""
    env = surroundings.env
    said = env.get("GEMINI_CLI_TRUST_WORKSPACE")
    if env.get("GEMINI_RESTRICTED_MODE") == "true" or said == "false":
        return (False,)
    if said == "true" or at(_settings(surroundings, trusted=False), "security", "folderTrust", "enabled") is False:
        return (True,)
    return (True, False)


def _settings(surroundings: Surroundings, *, trusted: bool) -> dict[str, Any]:
    env, read = surroundings.env, surroundings.read
    system = env.get(_SETTINGS) or f"{_SYSTEM}/settings.json"
    defaults = env.get("GEMINI_CLI_SYSTEM_DEFAULTS_PATH") or f"{os.path.dirname(system)}/system-defaults.json"
    own = [surroundings.cwd] if trusted and surroundings.cwd != _home(env) else []
    directories = [_home(env), *own]
    files = [defaults, *(f"{directory}/.gemini/settings.json" for directory in directories), system]
    return merged(*(json_file(read, path) for path in files))


def _environment(surroundings: Surroundings, settings: Mapping[str, Any], *, trusted: bool) -> dict[str, str]:
    ignored = at(settings, "advanced", "ignoreLocalEnv") is True
    for path in _candidates(surroundings, trusted=trusted, ignored=ignored):
        data = surroundings.read(path)
        if data is not None:
            loaded = dotenv(data)
            usable = loaded if trusted else {key: value for key, value in loaded.items() if key in _KEYS_ONLY}
            return usable | dict(surroundings.env)
    return dict(surroundings.env)


def _candidates(surroundings: Surroundings, *, trusted: bool, ignored: bool) -> Iterator[str]:
    """Yield the paths of the `.env` file, of which the program reads the first that exists."""
    home = _home(surroundings.env)
    for directory in (*upwards(surroundings.cwd), home):
        if trusted:
            yield f"{directory}/.gemini/.env"
        if not ignored or directory == home:
            yield f"{directory}/.env"
