"""aider (0.86, with LiteLLM 1.81): where its calls go.

It has a variable for the address of each provider. Later ones win: the environment,
`~/.aider/oauth-keys.env`, the `.env` files of the home directory, of the git repository and of the
working directory, `--set-env` on its command line, else those of `.aider.conf.yml`, and the option
`openai-api-base`, which sets OPENAI_API_BASE.

So the address is set in the environment where no file sets it: whatever a person writes on the
command line still wins, and no key goes elsewhere. Where a file sets it, it is replaced on the
command line.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from ...protocol.known import KEYS
from ..program import AgentProgram
from ..setups import GATEWAY, Person, Setup, TreeUpstream, dotenv, upwards


class LiteLlmProvider(NamedTuple):
    """A provider of LiteLLM whose calls the gateway can read."""

    name: str
    """What its models begin with."""
    variables: tuple[str, ...]
    """Where its address is looked for, in this order."""
    api: str
    default: str | None
    """Its address where none of them is set."""
    upstream: str | None = None
    """The one of the config that stands for the default, with what LiteLLM leaves out of the
    path."""


PROVIDERS = (
    LiteLlmProvider(
        "anthropic", ("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"), "anthropic", None, "anthropic"
    ),
    LiteLlmProvider(
        "openai", ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "openai-chat", None, "openai"
    ),
    LiteLlmProvider("azure", ("AZURE_API_BASE",), "openai-chat", None),
    LiteLlmProvider(
        "deepseek", ("DEEPSEEK_API_BASE",), "openai-chat", "https://api.deepseek.com/beta"
    ),
    LiteLlmProvider("gemini", ("GEMINI_API_BASE",), "gemini", None, "gemini/v1beta"),
    LiteLlmProvider("groq", ("GROQ_API_BASE",), "openai-chat", "https://api.groq.com/openai/v1"),
    LiteLlmProvider(
        "openrouter", ("OPENROUTER_API_BASE",), "openai-chat", "https://openrouter.ai/api/v1"
    ),
    LiteLlmProvider("xai", ("XAI_API_BASE",), "openai-chat", "https://api.x.ai/v1"),
)

_SIGNED = {"bedrock": "Amazon Bedrock", "sagemaker": "Amazon SageMaker", "vertex_ai": "Vertex AI"}
CONFIG = ".aider.conf.yml"
_SETTING = re.compile(
    r"^(set-env|openai-api-base|model)[ \t]*:[ \t]*(.*(?:\n[ \t]*-[ \t].*)*)", re.MULTILINE
)
_WORD = re.compile(r"""[^\s,\[\]"'#-][^\s,\[\]"'#]*""")


class Aider(AgentProgram):
    """`aider`, which prints text only."""

    name = "aider"
    command = (
        "aider",
        "--yes-always",
        "--model={provider}/{model}",
        "{options}",
        "--message={task}",
    )
    introduces_task = frozenset({"-m", "--msg", "--message", "--yes-always"})
    variables = ("AIDER_", "LITELLM_")

    def setup(self, person: Person) -> Setup:
        return setup(person)


PROGRAM = Aider()


def setup(person: Person) -> Setup:
    """Return how aider is routed through the gateway. Raises `UnreadableError`."""
    settings = _settings(person)
    model = next(iter(settings.get("model", ())), person.env.get("AIDER_MODEL", ""))
    if (signed := _SIGNED.get(model.partition("/")[0])) is not None:
        return Setup(
            "aider",
            direct=(
                f"aider's model {model} is one of {signed}, "
                "whose requests are signed for its own host"
            ),
        )
    files = _dotenv_files(person) | dict(
        pair for pair in map(_pair, settings.get("set-env", ())) if pair
    )
    base = next(iter(settings.get("openai-api-base", ())), None) or person.env.get(
        "AIDER_OPENAI_API_BASE"
    )
    if base:
        files["OPENAI_API_BASE"] = base
    routed = [_routed(provider, person.env, files, option=bool(base)) for provider in PROVIDERS]
    words = tuple(word for each in routed for word in each.words)
    # an option on the command line replaces those of the file
    again = tuple(f"--set-env={entry}" for entry in settings.get("set-env", ())) if words else ()
    return Setup(
        "aider",
        tuple(upstream for each in routed for upstream in each.upstreams),
        words=again + words,
        env=tuple(pair for each in routed for pair in each.env),
        unset=tuple(variable for each in routed for variable in each.unset),
        keys=tuple(variable for each in routed for variable in each.keys),
    )


def _routed(
    provider: LiteLlmProvider, env: Mapping[str, str], files: Mapping[str, str], *, option: bool
) -> Setup:
    """Return what leads the calls of one provider. `option`: a file sets the option
    `openai-api-base`."""
    variable, url = _address({**env, **files}, provider)
    if url is None and provider.upstream is None:
        return Setup("aider")
    upstreams = () if url is None else (TreeUpstream(f"aider-{provider.name}", url, provider.api),)
    keys = () if url is None else KEYS.get(provider.name, ())
    address = (
        f"{GATEWAY}/{provider.upstream}" if url is None else f"{GATEWAY}/aider-{provider.name}"
    )
    # what another program would find there, and the person has not set
    unset = provider.variables[: provider.variables.index(variable)]
    if variable not in files:
        return Setup("aider", upstreams, env=((variable, address),), unset=unset, keys=keys)
    of_option = option and variable == "OPENAI_API_BASE"
    word = f"--openai-api-base={address}" if of_option else f"--set-env={variable}={address}"
    return Setup("aider", upstreams, words=(word,), unset=unset, keys=keys)


def _address(env: Mapping[str, str], provider: LiteLlmProvider) -> tuple[str, str | None]:
    """Return the variable that decides about the address, and the address; `None` for that of the
    config's upstream."""
    for variable in provider.variables:
        if url := env.get(variable, "").rstrip("/"):
            return variable, _without_call(url)
    return provider.variables[-1], provider.default


def _without_call(url: str) -> str:
    """LiteLLM takes the address of a call, too."""
    return url.removesuffix("/v1/messages").removesuffix("/chat/completions")


def _directories(person: Person) -> list[str]:
    """Return the home directory, the git repository and the working directory: the later takes
    precedence."""
    cwd, read = person.cwd, person.read
    repository = next(
        (
            top
            for top in upwards(cwd)
            if any(read(f"{top}/{at}") is not None for at in (".git", ".git/HEAD"))
        ),
        None,
    )
    return list(dict.fromkeys(filter(None, (person.env.get("HOME"), repository, cwd))))


def _dotenv_files(person: Person) -> dict[str, str]:
    paths = [f"{directory}/.env" for directory in _directories(person)]
    if home := person.env.get("HOME"):
        paths.insert(0, f"{home}/.aider/oauth-keys.env")
    if chosen := person.env.get("AIDER_ENV_FILE"):
        paths.append(chosen if chosen.startswith("/") else f"{person.cwd}/{chosen}")
    return {name: value for path in paths for name, value in dotenv(person.read(path)).items()}


def _settings(person: Person) -> dict[str, list[str]]:
    """Return the settings of the YAML files that matter here."""
    found: dict[str, list[str]] = {}
    for directory in _directories(person):
        text = (person.read(f"{directory}/{CONFIG}") or b"").decode(errors="replace")
        found |= {key: _WORD.findall(value) for key, value in _SETTING.findall(text)}
    return found


def _pair(entry: str) -> tuple[str, str] | None:
    name, equals, value = entry.partition("=")
    return (name.strip(), value.strip()) if equals else None
