"""opencode: `opencode run --format json`.

From its source, because there is no recording: packages/opencode/src/cli/cmd/run.ts (`emit`) for
the events, and `getUsage` in packages/opencode/src/session/session.ts for what the numbers mean:
`input` excludes tokens read from or written to a cache, `output` excludes reasoning, and an unknown
price makes a cost of 0. opencode reports each step as it ends, so limits work while it runs; the
output of a step that has not ended is estimated from its text and its calls. It does not name the
model (https://github.com/anomalyco/opencode/issues/40544), and tells nothing of what its subagents
use.

It keeps its sessions in an SQLite database, whatever it prints:
packages/opencode/src/session/session.sql.ts. A part of a reply has a row as soon as it begins, and
each step one at its end, which is after the step's tools, and right before the next call.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from ...core.state.request import name_of
from ...protocol.known import KEYS
from .. import counters
from ..lenient import LenientDecoder
from ..line_meter import AgentFailure, LineMeter, Speech, ToolCall, WholeText
from ..own_server import OwnServer
from ..program import (
    AgentProgram,
    SessionDatabase,
    SessionPlace,
    SessionRow,
    SessionSearch,
    first_id,
    sorted_words,
    values,
)
from ..setups import (
    GATEWAY,
    Person,
    Read,
    Setup,
    TreeUpstream,
    at,
    json_file,
    json_object,
    merged,
    upwards,
)

_T = TypeVar("_T", bound=msgspec.Struct)


class _OpencodeCache(msgspec.Struct):
    read: Any = 0
    write: Any = 0


class _OpencodeTokens(msgspec.Struct):
    input: Any = 0
    output: Any = 0
    reasoning: Any = 0
    cache: _OpencodeCache | None = None


class _OpencodeCall(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"")


class _OpencodePart(msgspec.Struct):
    id: str = ""
    tool: Any = None
    text: Any = None
    state: _OpencodeCall | None = None
    tokens: _OpencodeTokens | None = None
    cost: Any = None


class _OpencodeDetails(msgspec.Struct):
    message: Any = None
    status: Any = msgspec.field(default=None, name="statusCode")


class _OpencodeError(msgspec.Struct):
    name: Any = None
    data: _OpencodeDetails | None = None


class _OpencodeEvent(msgspec.Struct):
    type: str = ""
    session: str = msgspec.field(default="", name="sessionID")
    part: _OpencodePart | None = None
    error: _OpencodeError | None = None


_PARTS = frozenset({"step_start", "text", "reasoning", "tool_use", "step_finish"})


class _OpencodeState(msgspec.Struct, array_like=True):
    parts: counters.RecentIds[bool] = msgspec.field(default_factory=counters.RecentIds[bool])
    written: counters.Estimate = msgspec.field(default_factory=counters.Estimate)


class OpencodeMeter(LineMeter[_OpencodeEvent, _OpencodeState]):
    types = ("step_start", "step_finish", "tool_use", "text", "reasoning", "error", "done")
    event_type = _OpencodeEvent
    state_type = _OpencodeState

    def __init__(self, *, model: str = "") -> None:
        """`model`: as the command names it, `provider/model`."""
        super().__init__()
        self._model = model

    def _take(self, event: _OpencodeEvent) -> None:
        self.reading.session = event.session[: counters.MAX_NAME] or self.reading.session
        if event.type in _PARTS and event.part is not None:
            self._count(event.type, event.part)
        elif event.type == "error":
            error = event.error or _OpencodeError()
            # no later step withdraws the error: opencode exits with 1, whatever follows
            data = error.data or _OpencodeDetails()
            self.reading.failed = counters.words(data.message, error.name)
            if data.status is not None or error.name == "APIError":
                counters.failed_call(self.reading, data.status, data.message)
        elif event.type == "done":
            self.reading.finished = True
        else:
            return
        counters.recognised(self.reading)

    def _count(self, kind: str, part: _OpencodePart) -> None:
        if not self._state.parts.first(part.id, True):
            # a part is printed again whenever it is updated, as when its session is compacted
            return
        # it tells nothing of its subagents' calls and of the one for a title
        self.reading.partial = True
        if kind == "step_finish":
            counters.message(self.reading)
            self._charge(part)
            return
        if kind == "tool_use":
            counters.turn(self.reading, part.tool)
        if kind != "step_start":
            self._state.written.grow(
                self.reading, self._model, part.text, part.state.input if part.state else None
            )

    def _charge(self, part: _OpencodePart) -> None:
        self._state.written.withdraw(self.reading)
        _charge(self.reading, self._model, part)


def _charge(reading: counters.Reading, model: str, part: _OpencodePart) -> None:
    """Count what the end of a step tells."""
    told = part.tokens or _OpencodeTokens()
    cache = told.cache or _OpencodeCache()
    used = counters.tokens(
        fresh=told.input,
        read=cache.read,
        written=cache.write,
        output=told.output,
        reasoning=told.reasoning,
    )
    cost = counters.dollars(part.cost) or None
    counters.add(reading.models, model, used)
    if cost is None:
        counters.add(reading.uncovered, model, used)
    counters.spend(reading, cost)


# ---- Its database


class _OpencodeMessage(msgspec.Struct):
    role: str = ""
    model: str = msgspec.field(default="", name="modelID")


class _OpencodeRow(_OpencodePart):
    type: str = ""


_ROWS, _MESSAGES = LenientDecoder(_OpencodeRow), LenientDecoder(_OpencodeMessage)

_BEGUN = " " * counters.BYTES_A_TOKEN
"""What a reply that has begun holds at the least. The tokens of its request are not known yet."""


class OpencodeSession:
    """Reads the rows of one session: the parts of messages."""

    def __init__(self) -> None:
        self.reading = counters.Reading()
        self.after = self._seen = 0
        self._written = counters.Estimate()

    def again(self) -> None:
        self._written.withdraw(self.reading)

    def take(self, row: SessionRow) -> None:
        part, message = _read(_ROWS, row.part), _read(_MESSAGES, row.message)
        if part is None or message is None or message.role != "assistant":
            return
        counters.recognised(self.reading)
        # its other calls, such as the one for a title, have no rows
        self.reading.partial = True
        fresh, self._seen = row.number > self._seen, max(row.number, self._seen)
        if part.type == "tool" and fresh:
            counters.turn(self.reading, part.tool)
        if part.type == "step-finish":
            self._written.withdraw(self.reading)
            counters.message(self.reading)
            _charge(self.reading, message.model, part)
            self.after = row.number
        elif part.type == "step-start" and not self._written.written:
            self._written.grow(self.reading, message.model, _BEGUN)
        elif part.type in _WRITTEN:
            written = part.text, part.state.input if part.state is not None else None
            if counters.size(*written) and self._written.written == len(_BEGUN):
                self._written.withdraw(self.reading)
            self._written.grow(self.reading, message.model, *written)


_WRITTEN = frozenset({"text", "reasoning", "tool"})


def _read(decoder: LenientDecoder[_T], data: bytes) -> _T | None:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class _OpencodeDatabase(SessionDatabase):
    program = "opencode"
    variable = "XDG_DATA_HOME"
    further_variables = ("OPENCODE_DB",)
    resume_words = frozenset({"-s", "--session", "-c", "--continue"})
    avoidable = True
    sessions = (
        "SELECT id, parent_id, directory, time_created, time_updated FROM session "
        "ORDER BY rowid DESC LIMIT 1000"
    )
    rows = (
        "SELECT part.rowid, part.data, message.data, part.time_updated "
        "FROM part JOIN message ON message.id = part.message_id "
        "WHERE part.session_id = :session AND part.rowid > :after "
        "AND part.time_created >= :since AND length(part.data) <= :most "
        "AND length(message.data) <= :most ORDER BY part.rowid"
    )

    def session_id(self, argv: Sequence[str]) -> str | None:
        return first_id(argv, self.program, "--session", "-s")

    def place(self, search: SessionSearch) -> SessionPlace | None:
        data = search.directory(self.variable, ".local/share") + "/opencode"
        # builds that are not released have one of another name
        named = search.env.get("OPENCODE_DB") or "opencode.db"
        if named == ":memory:":
            return None
        directory, name = os.path.split(os.path.join(data, named))
        return SessionPlace(directory, (name,))

    def meter(self) -> OpencodeSession:
        return OpencodeSession()


_VALUED = frozenset({
    "--log-level", "--command", "-s", "--session", "-m", "--model", "--agent", "--format",
    "--title", "--attach", "-p", "--password", "-u", "--username", "--dir", "--port", "--variant",
    "--hostname", "--mdns-domain", "--prompt", "--replay-limit",
})  # fmt: skip
_LISTED = frozenset({"-f", "--file", "--cors"})
"""Options with values (1.18)."""
_OF_SESSION = frozenset(
    {
        "-s",
        "--session",
        "-c",
        "--continue",
        "--fork",
        "--title",
        "--prompt",
        "--command",
        "-f",
        "--file",
    }
)
_ONLY_IN_TERMINAL = frozenset(
    {
        "--mini",
        "--no-replay",
        "--replay-limit",
        "--mdns",
        "--mdns-domain",
        "--cors",
        "--hostname",
        "-i",
    }
)


_OWN_SERVER = OwnServer(
    valued=_VALUED,
    listed=_LISTED,
    outside={"attach": "an opencode server", "--attach": "an opencode server"},
    addresses=frozenset({"attach", "--attach"}),
)


class Opencode(AgentProgram):
    """`opencode run`, and what runs it: `npx opencode-ai run`."""

    name = "opencode"
    command = (
        "opencode",
        "run",
        "--format",
        "json",
        "--model={provider}/{model}",
        "{options}",
        "--",
        "{task}",
    )
    introduces_task = frozenset({"run"})
    variables = ("OPENCODE_",)
    also_followed = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL")
    tells_cost = True
    own_server = _OWN_SERVER
    session_files = _OpencodeDatabase()

    def tool_variables(self, allowed: Sequence[str], blocked: Sequence[str]) -> dict[str, str]:
        if not (allowed or blocked):
            return {}
        # the last rule that matches a tool counts
        rules = {"*": "deny"} if allowed else {}
        rules |= dict.fromkeys((name_of(tool) for tool in allowed), "allow")
        rules |= dict.fromkeys((name_of(tool) for tool in blocked), "deny")
        return {"OPENCODE_PERMISSION": json.dumps(rules)}

    def setup(self, person: Person) -> Setup:
        return setup(person)

    # its --prompt has no effect beside --session (seen with 1.18.33)
    resumes_with_task_in_terminal = False

    def resumed(
        self, words: Sequence[str], session: str, task: str | None, *, terminal: bool
    ) -> list[str] | None:
        runs = words[:1] == ["run"]
        without = _OF_SESSION if terminal or runs else _OF_SESSION | _ONLY_IN_TERMINAL
        options, others = sorted_words(
            words[1:] if runs else words, valued=_VALUED, listed=_LISTED, without=without
        )
        options += ["--session", session]
        if terminal and not runs:
            return [*others[:1], *options]
        return ["run", *options, *(["--", task] if task is not None else [])]

    def directory(self, words: Sequence[str]) -> str | None:
        return next(reversed(values(words, "--dir")), None)

    def prints_events(self, words: Sequence[str]) -> bool:
        return "run" in words and "json" in values(words, "--format")

    def new_meter(self, words: Sequence[str]) -> OpencodeMeter:
        asked = values(words, "-m", "--model")
        return OpencodeMeter(model=asked[-1] if asked else "")

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """Yield what an event says to the user. The last text is the final answer."""
        match event:
            case {"type": "text", "part": {"text": str(text)}}:
                yield WholeText(text)
            case {"type": "tool_use", "part": dict(part)}:
                state = part.get("state")
                yield ToolCall(
                    part.get("tool"), state.get("input") if isinstance(state, dict) else None
                )
            case {"type": "error", "error": dict(error)}:
                data = error.get("data")
                yield AgentFailure(
                    counters.words(
                        data.get("message") if isinstance(data, dict) else None, error.get("name")
                    )
                )


PROGRAM = Opencode()


# ---- opencode (1.18): where its calls go
#
# Its configuration is merged, the later taking precedence:
# `~/.config/opencode/{config.json,opencode.json,opencode.jsonc}`, OPENCODE_CONFIG,
# `opencode.json(c)` from the top of the project down to the working directory, those in `.opencode`
# there and in the home directory and in OPENCODE_CONFIG_DIR, OPENCODE_CONFIG_CONTENT, and what an
# administrator sets in `/etc/opencode`.
#
# `provider.NAME.options.baseURL` is a provider's address. Without it, those of Anthropic and OpenAI
# follow their variables. So the others, and those that have an address, are routed by
# OPENCODE_CONFIG_CONTENT. A provider that is named there counts as one that the person wants, so
# those are named that have a key, and all of them.


CONTENT = "OPENCODE_CONFIG_CONTENT"
_MANAGED = "/etc/opencode"
_NAMES = ("opencode.json", "opencode.jsonc")


class KnownProvider(NamedTuple):
    package: str
    keys: tuple[str, ...]
    url: str | None = None


_COMPATIBLE = "@ai-sdk/openai-compatible"
PROVIDERS: dict[str, KnownProvider] = {
    "anthropic": KnownProvider("@ai-sdk/anthropic", ("ANTHROPIC_API_KEY",)),
    "openai": KnownProvider("@ai-sdk/openai", ("OPENAI_API_KEY",)),
    "cerebras": KnownProvider(
        "@ai-sdk/cerebras", ("CEREBRAS_API_KEY",), "https://api.cerebras.ai/v1"
    ),
    "deepseek": KnownProvider(_COMPATIBLE, ("DEEPSEEK_API_KEY",), "https://api.deepseek.com"),
    "google": KnownProvider(
        "@ai-sdk/google",
        ("GOOGLE_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY", "GEMINI_API_KEY"),
        "https://generativelanguage.googleapis.com/v1beta",
    ),
    "groq": KnownProvider("@ai-sdk/groq", ("GROQ_API_KEY",), "https://api.groq.com/openai/v1"),
    "minimax": KnownProvider(
        "@ai-sdk/anthropic", ("MINIMAX_API_KEY",), "https://api.minimax.io/anthropic/v1"
    ),
    "mistral": KnownProvider("@ai-sdk/mistral", ("MISTRAL_API_KEY",), "https://api.mistral.ai/v1"),
    "moonshotai": KnownProvider(_COMPATIBLE, ("MOONSHOT_API_KEY",), "https://api.moonshot.ai/v1"),
    "openrouter": KnownProvider(
        "@openrouter/ai-sdk-provider", ("OPENROUTER_API_KEY",), "https://openrouter.ai/api/v1"
    ),
    "togetherai": KnownProvider(
        "@ai-sdk/togetherai", ("TOGETHER_API_KEY",), "https://api.together.xyz/v1"
    ),
    "xai": KnownProvider("@ai-sdk/xai", ("XAI_API_KEY",), "https://api.x.ai/v1"),
    "zai-coding-plan": KnownProvider(
        _COMPATIBLE, ("ZHIPU_API_KEY",), "https://api.z.ai/api/coding/paas/v4"
    ),
}
"""Those of its catalogue that are routed without an address in the configuration."""

_APIS = {
    "@ai-sdk/anthropic": "anthropic",
    "@ai-sdk/openai": "openai-responses",
    "@ai-sdk/google": "gemini",
    "@ai-sdk/azure": "openai-responses",
    _COMPATIBLE: "openai-chat",
    "@openrouter/ai-sdk-provider": "openai-chat",
    **dict.fromkeys(
        (f"@ai-sdk/{name}" for name in ("cerebras", "groq", "mistral", "togetherai", "xai")),
        "openai-chat",
    ),
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
        keyed = [
            name
            for name, provider in PROVIDERS.items()
            if any(self.env.get(key) for key in provider.keys)
        ]
        return sorted(
            {
                *keyed,
                *self.logins,
                *(self.config.get("provider") or {}),
                *(self.managed.get("provider") or {}),
            }
        )


def setup(person: Person) -> Setup:
    """Return how opencode is routed through the gateway. Raises `UnreadableError`."""
    found = _found(person)
    if (elsewhere := _elsewhere(found)) is not None:
        return Setup("opencode", direct=f"opencode uses {elsewhere}")
    upstreams = tuple(
        upstream for name in found.providers if (upstream := _upstream(name, found)) is not None
    )
    # those of its variables, which are set for any program
    if not upstreams:
        return Setup("opencode")
    merged_ = ((CONTENT, json.dumps(_content(found, upstreams))),)
    return Setup("opencode", upstreams, merged=merged_, keys=_keys(found, upstreams))


def _keys(found: OpencodeSettings, upstreams: Sequence[TreeUpstream]) -> tuple[str, ...]:
    """Return the variables that hold keys for addresses of the configuration."""
    entries = {
        name: at(found.config, "provider", name)
        for name in (each.name.removeprefix("opencode-") for each in upstreams)
    }
    texts = [json.dumps(entry) for name, entry in entries.items() if _chosen_url(entry) is not None]
    names = [
        variable
        for text in texts
        for pair in _REFERENCE.findall(text)
        for variable in pair
        if variable
    ]
    families = [
        family
        for family, provider in _FAMILIES.items()
        if _chosen_url(entries.get(provider)) is not None
    ]
    return tuple(
        dict.fromkeys((*names, *(variable for family in families for variable in KEYS[family])))
    )


def _found(person: Person) -> OpencodeSettings:
    env, read = person.env, person.read
    own, logins = json_object(env.get(CONTENT, ""), CONTENT), env.get("OPENCODE_AUTH_CONTENT")
    data = env.get("XDG_DATA_HOME") or f"{_home(env)}/.local/share"
    return OpencodeSettings(
        merged(*(json_file(read, path) for path in _files(person)), own),
        merged(*(json_file(read, f"{_MANAGED}/{name}") for name in _NAMES)),
        json_object(logins, "OPENCODE_AUTH_CONTENT")
        if logins
        else json_file(read, f"{data}/opencode/auth.json"),
        env,
    )


def _home(env: Mapping[str, str]) -> str:
    return env.get("HOME") or "/"


def _files(person: Person) -> Iterator[str]:
    env, read = person.env, person.read
    general = f"{env.get('XDG_CONFIG_HOME') or f'{_home(env)}/.config'}/opencode"
    yield from (f"{general}/{name}" for name in ("config.json", *_NAMES))
    if chosen := env.get("OPENCODE_CONFIG"):
        yield os.path.join(person.cwd, chosen)
    project = list(_project(person.cwd, read))[::-1]
    if not env.get("OPENCODE_DISABLE_PROJECT_CONFIG"):
        yield from (f"{directory}/{name}" for directory in project for name in _NAMES)
    for directory in (
        *(f"{directory}/.opencode" for directory in (*project, _home(env))),
        env.get("OPENCODE_CONFIG_DIR"),
    ):
        if directory:
            yield from (f"{directory}/{name}" for name in _NAMES)


def _project(cwd: str, read: Read) -> Iterator[str]:
    """Yield the working directory and those above it, up to the top of its git repository."""
    for directory in upwards(cwd):
        yield directory
        if any(read(f"{directory}/{name}") is not None for name in (".git", ".git/HEAD")):
            return


def _elsewhere(found: OpencodeSettings) -> str | None:
    """Return what the program uses that cannot be routed: for its model, or for all that it has."""
    model = at(found.managed, "model") or at(found.config, "model")
    names = [model.partition("/")[0]] if isinstance(model, str) else found.providers
    reasons = [_reason(name, found) for name in names]
    return reasons[0] if reasons and None not in reasons else None


def _reason(name: str, found: OpencodeSettings) -> str | None:
    if name == "openai" and at(found.logins, name, "type") == "oauth":
        return "a ChatGPT login, whose calls go to chatgpt.com"
    return _ELSEWHERE.get(name)


def _upstream(name: str, found: OpencodeSettings) -> TreeUpstream | None:
    """Return where a provider's calls go, if OPENCODE_CONFIG_CONTENT can lead them and the gateway
    can read them."""
    entry = at(found.config, "provider", name)
    known = PROVIDERS.get(name)
    api = _APIS.get(at(entry, "npm") or (known.package if known else ""))
    url = _url(name, entry, found.env)
    # an address for one model would be replaced, too
    models = [
        *(at(entry, "models") or {}).values(),
        *(at(found.managed, "provider", name, "models") or {}).values(),
    ]
    single = any(at(model, "provider") for model in models)
    fixed = (
        at(found.managed, "provider", name, "options", "baseURL") or single or _reason(name, found)
    )
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
    """Return a text with the values of the variables that it names; `None` if one is not set, or it
    names a file."""
    names = [first or second for first, second in _REFERENCE.findall(text)]
    if "{file:" in text or any(name not in env for name in names):
        return None
    return _REFERENCE.sub(lambda match: env[match[1] or match[2]], text).rstrip("/")


def _content(found: OpencodeSettings, upstreams: Sequence[TreeUpstream]) -> dict[str, Any]:
    """Return the configuration that is merged over the person's."""
    chosen = found.config.get("provider") or found.config.get("model")
    named: dict[str, Any] = {} if chosen else {name: {} for name in (*found.providers, _FREE)}
    routed = {
        each.name.removeprefix("opencode-"): {"options": {"baseURL": f"{GATEWAY}/{each.name}"}}
        for each in upstreams
    }
    return {"provider": {**named, **routed}}
