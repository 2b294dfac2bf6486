"""Codex: `codex exec --json`, and its session files.

From recordings (tests/agents/streams/) and its source, codex-rs/exec/src/exec_events.rs and
event_processor_with_jsonl_output.rs. Codex tells usage only when a turn is completed, so a hard
stop needs reservations; a turn that failed tells none. Until then its output is estimated from its
items, and its input is unknown.

The usage is the total of the *thread*, not of the turn (`usage_from_last_total`;
https://github.com/openai/codex/issues/17539). So of several in one stream the latest is right. And
`codex exec resume` begins with what the thread used before: one short answer in an old thread
reported 22 million tokens (https://github.com/gitmoot/gitmoot/issues/661). Nothing in the stream
tells how much of that is this run's, so it stays unknown.

Session files (tests/agents/sessions/, version 0.169.0) are
CODEX_HOME/sessions/YYYY/MM/DD/rollout-TIME-ID.jsonl; each subagent has a file of its own.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from ...config_values import is_base_url
from ...protocol.known import KEYS
from ...protocol.requests.windows import SeenWindow
from ...protocol.types import Tokens
from .. import counters
from ..counters import MAX_NAME, WindowsTold
from ..line_meter import (
    AgentFailure,
    LineMeter,
    SessionMeter,
    Speech,
    ToolCall,
    WholeText,
)
from ..own_server import OwnServer
from ..program import (
    AgentProgram,
    SessionFiles,
    SessionPlace,
    SessionSearch,
    arguments,
    digest,
    sorted_words,
    values,
)
from ..setups import (
    GATEWAY,
    Person,
    Setup,
    TreeUpstream,
    UnreadableError,
    at,
    json_file,
    merged,
    savable,
    toml_file,
)

_NOT_CALLS = frozenset(
    {"", "agent_message", "assistant_message", "reasoning", "plan", "todo_list", "error"}
)
"""Items that are not tool calls. An item that a later version adds counts as one: too much rather
than too little."""


class _CodexUsage(msgspec.Struct):
    input_tokens: Any = 0
    cached_input_tokens: Any = 0
    cache_write_input_tokens: Any = 0
    output_tokens: Any = 0

    def tokens(self) -> Tokens:
        """Input tokens include those read from and written to the cache."""
        read, written = self.cached_input_tokens, self.cache_write_input_tokens
        return counters.tokens_in_all(
            total=self.input_tokens, read=read, written=written, output=self.output_tokens
        )


class _CodexItem(msgspec.Struct):
    id: str = ""
    type: str = ""
    tool: Any = None
    text: Any = None
    command: Any = None
    query: Any = None
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _CodexError(msgspec.Struct):
    message: Any = None


class _CodexEvent(msgspec.Struct):
    type: str = ""
    thread_id: str = ""
    item: _CodexItem | None = None
    usage: _CodexUsage | None = None
    error: _CodexError | None = None
    message: Any = None


class _CodexState(msgspec.Struct, array_like=True):
    inherited: Tokens | None = None
    """What the thread used before this run; `None`: not known yet."""
    thread: str = ""
    totals: counters.Totals = msgspec.field(default_factory=counters.Totals)
    calls: counters.RecentIds[bool] = msgspec.field(default_factory=counters.RecentIds[bool])
    """Calls that have begun, by the item's id; true while they go on."""
    written: counters.Estimate = msgspec.field(default_factory=counters.Estimate)


class CodexMeter(LineMeter[_CodexEvent, _CodexState]):
    types = (
        "thread.started", "item.started", "item.completed", "turn.completed", "turn.failed",
        "error",
    )  # fmt: skip
    event_type = _CodexEvent
    state_type = _CodexState

    def __init__(self, *, model: str = "", provider: str = "", resumed: bool = False) -> None:
        """`model`, `provider`: the stream does not name them. `resumed`: the totals begin with what
        earlier runs used."""
        super().__init__()
        self.reading.provider = counters.printable(provider, MAX_NAME)
        self._state.inherited = None if resumed else Tokens()
        self._model = counters.printable(model, MAX_NAME)
        self._resumed = resumed

    def _take(self, event: _CodexEvent) -> None:
        if event.type == "thread.started":
            self._state.thread = self.reading.session = event.thread_id[:MAX_NAME]
            # each process numbers its items from the start
            self._state.calls = counters.RecentIds[bool]()
            self.reading.finished, self.reading.partial = False, True
        elif event.type == "item.started" and event.item is not None:
            self._begin(event.item)
        elif event.type == "item.completed" and event.item is not None:
            self._complete(event.item)
        elif event.type == "turn.completed":
            self.reading.finished, self.reading.failed = True, None
            self.reading.trouble = None
            self._charge((event.usage or _CodexUsage()).tokens())
        elif event.type == "error":
            counters.failed_call_in_words(self.reading, event.message)
        elif event.type == "turn.failed":
            self.reading.finished = True
            self.reading.failed = counters.words(event.error.message if event.error else None)
        else:
            return
        counters.recognised(self.reading)

    def _begin(self, item: _CodexItem) -> None:
        # a call counts when it begins, because the model may leave a command in the background,
        # which is never completed
        if item.type not in _NOT_CALLS:
            self._state.calls.put(item.id, True)
            self._write(item)
            counters.turn(self.reading, item.tool if isinstance(item.tool, str) else item.type)

    def _complete(self, item: _CodexItem) -> None:
        if self._state.calls.get(item.id):
            self._state.calls.put(item.id, False)
            return
        if item.type != "error":
            self._write(item)
        if item.type == "agent_message":
            counters.message(self.reading)
        elif item.type not in _NOT_CALLS:
            counters.turn(self.reading, item.tool if isinstance(item.tool, str) else item.type)

    def _write(self, item: _CodexItem) -> None:
        self._state.written.grow(
            self.reading, self._model, item.text, item.command, item.query, item.arguments
        )

    def _charge(self, used: Tokens) -> None:
        if self._state.inherited is None:
            self._state.inherited = used
            return
        used = counters.minus(used, self._state.inherited)
        if used.input + used.output:
            self._state.written.withdraw(self.reading)
            self.reading.partial = self._resumed
            self._state.totals.restate(self.reading, self._state.thread, {self._model: used})


class _CodexInfo(msgspec.Struct):
    total_token_usage: _CodexUsage | None = None


class _CodexSettings(msgspec.Struct):
    service_tier: Any = None
    model_provider_id: Any = None


class _CodexWindow(msgspec.Struct):
    used_percent: Any = None
    window_minutes: Any = None
    resets_at: Any = None
    resets_in_seconds: Any = None


class _CodexCredits(msgspec.Struct):
    has_credits: Any = None
    unlimited: Any = None
    balance: Any = None


class _CodexLimits(msgspec.Struct):
    limit_id: Any = None
    primary: _CodexWindow | None = None
    secondary: _CodexWindow | None = None
    credits: _CodexCredits | None = None
    plan_type: Any = None


class _CodexPayload(msgspec.Struct):
    type: str = ""
    role: str = ""
    model: str = ""
    name: Any = None
    call_id: str = ""
    info: _CodexInfo | None = None
    thread_token_usage: _CodexUsage | None = None
    model_provider: Any = None
    thread_settings: _CodexSettings | None = None
    rate_limits: _CodexLimits | None = None


class _CodexLine(msgspec.Struct):
    type: str = ""
    timestamp: Any = None
    payload: _CodexPayload | None = None


def _windows(limits: _CodexLimits, timestamp: Any) -> WindowsTold | None:
    """Return what a line tells of windows; `None` if it has none, or tells of
    another limit."""
    if limits.limit_id not in (None, "codex") or not isinstance(timestamp, str):
        return None
    try:
        time = datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError):
        return None
    told = (("primary", limits.primary), ("secondary", limits.secondary))
    windows = tuple(
        _window(name, window, time)
        for name, window in told
        # a plan with one window says 0 of everything for the other
        if window is not None
        and _is_number(window.used_percent)
        and (window.used_percent or window.window_minutes or window.resets_at)
    )
    plan_type = limits.plan_type[:MAX_NAME] if isinstance(limits.plan_type, str) else None
    left = _credits(limits.credits) if limits.credits is not None else None
    return WindowsTold(time, plan_type, windows, left) if windows else None


def _credits(told: _CodexCredits) -> str | None:
    if told.unlimited is True:
        return "unlimited"
    if told.has_credits is True:
        return counters.printable(told.balance, MAX_NAME) or None
    return "0" if told.has_credits is False else None


def _window(name: str, told: _CodexWindow, time: float) -> SeenWindow:
    after = time + told.resets_in_seconds if _is_number(told.resets_in_seconds) else None
    return SeenWindow(
        window=name,
        used_ratio=round(min(told.used_percent, 1000) / 100, 6),
        resets_at=float(told.resets_at) if _is_number(told.resets_at) else after,
        seconds=60.0 * told.window_minutes
        if _is_number(told.window_minutes) and told.window_minutes
        else None,
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e12


class CodexSession(SessionMeter[_CodexLine]):
    """Totals are those of the thread. `token_usage_record` is written with the reply, `token_count`
    after the tool call that follows it; both are repeated, and older versions write only the
    second."""

    types = (
        "session_meta", "response_item", "turn_context", "thread_settings_applied", "token_count",
        "token_usage_record", "task_complete", "turn_aborted",
    )  # fmt: skip
    event_type = _CodexLine
    _model = ""
    _total = Tokens()

    def _take(self, event: _CodexLine) -> None:
        payload = event.payload
        if payload is None:
            return
        ours = self._in_time(event.timestamp)
        if event.type == "turn_context":
            self._model = payload.model[:MAX_NAME]
        elif event.type == "session_meta":
            self.reading.provider = counters.printable(payload.model_provider, MAX_NAME)
        elif payload.thread_settings is not None:
            settings = payload.thread_settings
            self.reading.tier = counters.printable(settings.service_tier, MAX_NAME)
            told = counters.printable(settings.model_provider_id, MAX_NAME)
            self.reading.provider = told or self.reading.provider
        elif event.type == "response_item":
            if ours:
                self._item(payload)
        else:
            self._count(payload, event.timestamp, ours=ours)

    def _item(self, item: _CodexPayload) -> None:
        counters.recognised(self.reading)
        if item.type.endswith("_output") or item.role == "user":
            self._asked()
        elif item.role == "assistant":
            counters.message(self.reading)
        elif item.type.endswith("_call") and self._state.calls.first(item.call_id, True):
            counters.turn(self.reading, item.name if isinstance(item.name, str) else item.type)

    def _count(self, payload: _CodexPayload, timestamp: Any, *, ours: bool) -> None:
        if ours and payload.rate_limits is not None:
            self.reading.windows = _windows(payload.rate_limits, timestamp) or self.reading.windows
        told = payload.thread_token_usage or (
            payload.info.total_token_usage if payload.info is not None else None
        )
        if told is not None:
            total, before = told.tokens(), self._total
            self._total = total
            more = counters.minus(total, before)
            if ours and more.input + more.output:
                counters.add(self.reading.models, self._model, more)
        elif payload.type == "task_complete":
            self.reading.partial = False
        elif payload.type == "turn_aborted":
            self.reading.broken |= ours


class _CodexFiles(SessionFiles):
    program = "codex"
    meter = CodexSession
    variable = "CODEX_HOME"
    resume_words = frozenset({"resume"})

    def session_id(self, argv: Sequence[str]) -> str | None:
        words = arguments(argv, "codex") or []
        after = words[words.index("resume") + 1 :] if "resume" in words else []
        return next(
            (word for word in after if re.fullmatch(r"[0-9a-f]{8}-[0-9a-f-]{27}", word)), None
        )

    def places(self, search: SessionSearch) -> list[SessionPlace]:
        root = search.directory(self.variable, ".codex") + "/sessions"
        # Codex names the days in its own time zone
        days = [search.since.astimezone(UTC) + timedelta(days=days) for days in (1, 0, -1)]
        rollout = re.compile(r"rollout-.*\.jsonl")
        found = [
            SessionPlace(root, (f"{day:%Y}", f"{day:%m}", f"{day:%d}", rollout)) for day in days
        ]
        if search.session is not None:
            year, two = re.compile(r"\d{4}"), re.compile(r"\d\d")
            found.append(
                SessionPlace(
                    root, (year, two, two, re.compile(rf"rollout-.*-{search.session}\.jsonl"))
                )
            )
        return found

    def said(self, line: dict[str, Any]) -> tuple[Any, Any, Any]:
        meta = line.get("payload")
        if not isinstance(meta, dict):
            return None, None, None
        return meta.get("session_id") or meta.get("id"), meta.get("cwd"), meta.get("timestamp")


_VALUED = frozenset({
    "-a", "--ask-for-approval", "--add-dir", "-c", "--config", "-C", "--cd", "--color",
    "--cyber-access-program", "--disable", "--enable", "-i", "--image", "--local-provider", "-m",
    "--model", "-o", "--output-last-message", "--output-schema", "-p", "--profile", "--remote",
    "--remote-auth-token-env", "-s", "--sandbox", "--thread-source",
})  # fmt: skip
"""Options with values (0.169)."""
_OF_SESSION = frozenset(
    {"-i", "--image", "--last", "--all", "--include-non-interactive", "--worktree", "--ephemeral"}
)
_SUBCOMMANDS = ("exec", "e", "resume")
_TOOL_SETTINGS = {
    "command_execution": "features.shell_tool=false",
    "web_search": 'web_search="disabled"',
}
"""By the name that a tool has in Codex's events: the setting that takes it away. Other tools have
none (0.169)."""


_DAEMON = "Codex's app-server daemon"
_OWN_SERVER = OwnServer(
    valued=_VALUED,
    outside={
        "agents": _DAEMON,
        "app-server daemon": _DAEMON,
        "app-server proxy": _DAEMON,
        "queue": "another session of Codex",
        "remote-control": _DAEMON,
        "cloud": "OpenAI's cloud",
        # these only read
        "cloud list": None,
        "cloud status": None,
        "cloud diff": None,
        "cloud apply": None,
        "cloud help": None,
        "--remote": "an app-server",
    },
    addresses=frozenset({"--remote"}),
    # in a terminal it would start the daemon, or use a person's; with a setting of its own that is
    # no feature it does neither, and asks nothing
    alone=("-c", "check_for_update_on_startup=false"),
    always_alone=frozenset({"exec", "e", "review", "app-server", "mcp-server"}),
    sockets=re.compile(r"/.*/codex-daemon-\d+/[0-9a-f]+|/.*/app-server-control\.sock"),
)
"""Seen with 0.169."""


class Codex(AgentProgram):
    """`codex exec`, and what runs it: `npx @openai/codex exec`."""

    name = "codex"
    command = ("codex", "exec", "--json", "--model={model}", "{options}", "--", "{task}")
    introduces_task = frozenset({"exec", "e", "--json"})
    variables = ("CODEX_",)
    names_tools_like_calls = False
    session_files = _CodexFiles()
    own_server = _OWN_SERVER

    def tool_options(self, allowed: Sequence[str], blocked: Sequence[str]) -> list[str]:
        taken = (
            tool for tool in _TOOL_SETTINGS if tool in blocked or (allowed and tool not in allowed)
        )
        return [f"--config={_TOOL_SETTINGS[tool]}" for tool in taken]

    def setup(self, person: Person) -> Setup:
        return setup(person)

    def setup_of_command(
        self, setup: Setup, options: Sequence[str], env: Mapping[str, str]
    ) -> Setup:
        return of_command(setup, options, env)

    def resumed(
        self, words: Sequence[str], session: str, task: str | None, *, terminal: bool
    ) -> list[str] | None:
        at = _subcommand(words)
        before, others = sorted_words(words[:at], valued=_VALUED, without=_OF_SESSION)
        after, more = sorted_words(words[at + 1 :], valued=_VALUED, without=_OF_SESSION)
        # the task is one word; `resume` and the id come before it
        if len(others) > 1 or len(more) > (
            3 if "resume" in more else 2 if words[at : at + 1] == ["resume"] else 1
        ):
            return None
        told = ["--", task] if task is not None else []
        if terminal:
            return [*before, *after, "resume", session, *told]
        by_person = words[at : at + 1] not in (["exec"], ["e"])  # who has trusted the directory
        return [
            *before,
            "exec",
            *(["--skip-git-repo-check"] if by_person else []),
            *after,
            "resume",
            session,
            *told,
        ]

    def directory(self, words: Sequence[str]) -> str | None:
        return next(reversed(values(words, "-C", "--cd")), None)

    def prints_events(self, words: Sequence[str]) -> bool:
        # the second is the former name
        return not {"--json", "--experimental-json"}.isdisjoint(_exec(words))

    def new_meter(self, words: Sequence[str]) -> CodexMeter:
        asked = values(words, "-m", "--model") or _configured(words, "model")
        provider = _configured(words, "model_provider")
        return CodexMeter(
            model=asked[-1] if asked else "",
            provider=provider[-1] if provider else "",
            resumed="resume" in _exec(words),
        )

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """Yield what an event says to the user. The last message is the final answer."""
        match event:
            case {
                "type": "item.completed",
                "item": {"type": "agent_message" | "assistant_message", "text": str(text)},
            }:
                yield WholeText(text)
            case {"type": "item.started", "item": {"type": str(kind)} as item} if (
                kind not in _NOT_CALLS
            ):
                yield ToolCall(item.get("tool", kind), item.get("command", item.get("arguments")))
            case {"type": "turn.failed"}:
                yield AgentFailure(_failure(event.get("error")))


def _subcommand(words: Sequence[str]) -> int:
    """Return where the subcommand is; the number of words if there is none."""
    options = 0
    for number, word in enumerate(words):
        found = len(sorted_words(words[: number + 1], valued=_VALUED).options)
        if found == options and word in _SUBCOMMANDS:
            return number
        options = found
    return len(words)


def _failure(error: Any) -> str:
    return counters.words(error.get("message") if isinstance(error, dict) else None)


def _exec(words: Sequence[str]) -> Sequence[str]:
    """Return the words after the subcommand `exec`; none for another subcommand."""
    at = next((at for at, word in enumerate(words) if word in {"exec", "e"}), len(words))
    return words[at + 1 :]


def _configured(words: Sequence[str], name: str) -> list[str]:
    """Return the values that a command gives to a setting."""
    settings = [setting.partition("=") for setting in values(words, "-c", "--config")]
    return [value.strip().strip("\"'") for key, _, value in settings if key.strip() == name]


PROGRAM = Codex()


# ---- Codex (0.169): where its calls go
#
# Its settings, the later taking precedence: `/etc/codex/config.toml`, `config.toml` of CODEX_HOME
# (`~/.codex`), the profile that `-p NAME` chooses (`NAME.config.toml` beside it), `-c KEY=VALUE` in
# the order of the command line, and what an administrator sets in `managed_config.toml` and
# `requirements.toml` of `/etc/codex`. The settings of a project cannot choose an address. Codex
# ignores OPENAI_BASE_URL.
#
# `openai_base_url` is the address of its own provider, and `model_providers.NAME.base_url` that of
# another. `-c` routes all of them at once: it comes right after the program's name, so that a
# command can still choose one. Without an address, Codex's own provider is the API of OpenAI with a
# key, and the backend of ChatGPT with a ChatGPT login. With `-c`, Codex does not use its background
# server, whose calls no run makes.


OPENAI = "https://api.openai.com/v1"
CHATGPT = "https://chatgpt.com/backend-api/codex"
_CHATGPT_BASE_URL = "https://chatgpt.com/backend-api"
_ETC = "/etc/codex"
_OWN_PROVIDER = "openai"
_BUILT_IN = {
    "amazon-bedrock": "its requests are signed for its own host",
    "lmstudio": "its address is fixed",
    "ollama": "its address is fixed",
}
_ADDRESSES = {
    "openai_base_url",
    "chatgpt_base_url",
    "model_providers",
    "cli_auth_credentials_store",
}
_DECISIVE = {*_ADDRESSES, "model_provider", "config_server"}
_ELSEWHERE = ("--oss", "--local-provider", "--ignore-user-config", "--remote")
"""Options by which other settings count."""
MOST_PROFILES = 32
_PROFILE = ".config.toml"
_USUAL_WORD = f'openai_base_url="{GATEWAY}/openai"'
_OTHER_LOGINS = {OPENAI: ("CODEX_ACCESS_TOKEN",), CHATGPT: ("CODEX_API_KEY", "CODEX_ACCESS_TOKEN")}
"""Variables with which Codex would not go to the address that its login means."""


class _ElsewhereError(Exception):
    """Codex cannot be routed. The message says why."""


def setup(person: Person) -> Setup:
    """Return how Codex is routed through the gateway. Raises `UnreadableError`."""
    read, home = person.read, _home(person.env)
    files = person.names(home)
    try:
        _refuse_managed(person)
        if not home.startswith("/"):
            raise _ElsewhereError(f"CODEX_HOME is '{home}', which does not begin with /")
        general = merged(
            toml_file(read, f"{_ETC}/config.toml"), toml_file(read, f"{home}/config.toml")
        )
    except _ElsewhereError as error:
        return Setup("codex", direct=str(error))
    found = _routed(person, general)
    chosen = [name for name in files if name.endswith(_PROFILE) and name != _PROFILE][
        :MOST_PROFILES
    ]
    profiles = tuple(
        (name.removesuffix(_PROFILE), _of_profile(person, general, name)) for name in chosen
    )
    return replace(found, only_with=_place(person.env), profiles=profiles, account=_account(person))


def of_command(setup: Setup, options: Sequence[str], env: Mapping[str, str]) -> Setup:
    """Return the setup of a command, which may choose a provider or a profile, but no address that
    is not known. `options`: the words after the program; the gateway's own address is `{gateway}`
    there."""
    changed = _changed(setup, env)
    if changed is not None:
        return Setup(
            "codex", direct=f"Codex's {changed} is not what it was when the run's root started"
        )
    asked = options[: options.index("--")] if "--" in options else options
    other = next((word for word in asked if word.partition("=")[0] in _ELSEWHERE), None)
    typed = [(key, value) for key, value in _overrides(asked) if GATEWAY not in value]
    address = next((key for key, _ in typed if key.partition(".")[0] in _ADDRESSES), None)
    if other is not None or address is not None:
        return Setup("codex", direct=f"Codex's command line has {other or f'-c {address}'}")
    for profile in _values(asked, "-p", "--profile"):
        unknown = Setup(
            "codex", direct=f"Codex's profile '{profile}' was not there when the run's root started"
        )
        setup = dict(setup.profiles).get(profile, unknown)
    chosen = [value for key, value in typed if key == "model_provider"]
    return _with_provider(setup, _plain(chosen[-1])) if chosen else setup


def _with_provider(setup: Setup, provider: str) -> Setup:
    routed = merged(*(tomllib.loads(word) for word in setup.words if word != "-c"))
    names = {
        *routed.get("model_providers", {}),
        *([_OWN_PROVIDER] if "openai_base_url" in routed else []),
    }
    direct = (
        None
        if provider in names
        else f"Codex uses the provider '{provider}', which cannot be routed"
    )
    return Setup("codex", setup.upstreams, setup.words, direct=direct, keys=setup.keys)


def _home(env: Mapping[str, str]) -> str:
    return env.get("CODEX_HOME") or f"{env.get('HOME') or ''}/.codex"


def _place(env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that say where its settings and its login are."""
    if home := env.get("CODEX_HOME"):
        return (("CODEX_HOME", home),)
    return (("CODEX_HOME", ""), ("HOME", env["HOME"])) if env.get("HOME") else ()


def _changed(setup: Setup, env: Mapping[str, str]) -> str | None:
    """Return a variable with which other settings or another login count than those of the root."""
    place = next(
        (name for name, value in setup.only_with if savable(env.get(name, "")) != value), None
    )
    if place is not None:
        return place
    urls = {upstream.url for upstream in setup.upstreams} | (
        {OPENAI} if _USUAL_WORD in setup.words else set()
    )
    others = [name for url, names in _OTHER_LOGINS.items() if url in urls for name in names]
    return next((name for name in others if env.get(name)), None)


def _refuse_managed(person: Person) -> None:
    """Raise `_ElsewhereError` if an administrator's settings, which take precedence over `-c`,
    choose an address."""
    for path in (f"{_ETC}/managed_config.toml", f"{_ETC}/requirements.toml"):
        if keys := sorted(_DECISIVE.intersection(toml_file(person.read, path))):
            raise _ElsewhereError(
                f"{path} sets {keys[0]}, which takes precedence over the gateway's address"
            )


def _of_profile(person: Person, general: dict[str, Any], name: str) -> Setup:
    try:
        return _routed(
            person,
            merged(general, toml_file(person.read, f"{_home(person.env)}/{name}")),
        )
    except UnreadableError as error:
        return Setup("codex", direct=str(error))


def _routed(person: Person, settings: dict[str, Any]) -> Setup:
    """Return what leads all providers of the settings that can be routed, and why the one that they
    choose cannot."""
    providers = settings.get("model_providers")
    urls: dict[str, str | None] = {}
    reasons = dict(_BUILT_IN)
    for name in (_OWN_PROVIDER, *(providers if isinstance(providers, dict) else ())):
        try:
            if name not in _BUILT_IN:
                urls[name] = (
                    _own_address(person, settings)
                    if name == _OWN_PROVIDER
                    else _address(at(providers, name))
                )
        except (_ElsewhereError, UnreadableError) as error:
            reasons[name] = str(error)
    upstreams = {name: _upstream(url) for name, url in urls.items() if url is not None}
    places = {
        name: f"{GATEWAY}/{quote(upstreams[name].name, safe='') if name in upstreams else 'openai'}"
        for name in urls
    }
    chosen = str(settings.get("model_provider") or _OWN_PROVIDER)
    reason = None if chosen in urls else reasons.get(chosen, "its settings do not have it")
    direct = None if reason is None else f"Codex uses the provider '{chosen}': {reason}"
    return Setup(
        "codex",
        tuple(dict.fromkeys(upstreams.values())),
        _words(places),
        direct=direct,
        keys=_keys(urls, providers),
    )


def _keys(urls: Mapping[str, str | None], providers: Any) -> tuple[str, ...]:
    """Return the variables that hold keys for addresses of the settings."""
    own = KEYS["openai"] if urls.get(_OWN_PROVIDER) not in (None, OPENAI, CHATGPT) else ()
    named = [at(providers, name, "env_key") for name in urls]
    headers = [at(providers, name, "env_http_headers") for name in urls]
    named += [variable for each in headers if isinstance(each, dict) for variable in each.values()]
    return tuple(
        dict.fromkeys((*own, *(variable for variable in named if isinstance(variable, str))))
    )


def _upstream(url: str) -> TreeUpstream:
    """Return the upstream of an address. Its name is the address, which tells those of all profiles
    apart, and by which Codex still knows Azure."""
    return TreeUpstream(f"codex-{url.removeprefix('https://')}", url, "openai-responses")


def _words(places: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options that set the addresses of providers. A name may have dots, which a dotted
    key of `-c` cannot have."""
    providers = [
        (json.dumps(name, ensure_ascii=False), url)
        for name, url in places.items()
        if name != _OWN_PROVIDER
    ]
    others = ", ".join(f'{name} = {{base_url = "{url}"}}' for name, url in providers)
    own = ("-c", f'openai_base_url="{places[_OWN_PROVIDER]}"') if _OWN_PROVIDER in places else ()
    return own + (("-c", f"model_providers={{{others}}}") if others else ())


def _address(provider: Any) -> str:
    """Return the address of a provider of the settings. Raises `_ElsewhereError`."""
    bound = next((key for key in ("aws", "gateway_oauth") if at(provider, key) is not None), None)
    if bound is not None:
        raise _ElsewhereError(f"with '{bound}' its requests are made for its own host")
    return _checked("base_url", at(provider, "base_url"))


def _checked(key: str, url: Any) -> str:
    if not isinstance(url, str) or not is_base_url(url) or "@" in url:
        raise _ElsewhereError(f"its {key} is no address that the gateway can call")
    return url.rstrip("/")


def _own_address(person: Person, settings: dict[str, Any]) -> str | None:
    """Return the address of Codex's own provider; `None` for the upstream 'openai' of the config,
    which stands for the API of OpenAI. Raises `_ElsewhereError` and `UnreadableError`."""
    if settings.get("openai_base_url"):
        return _checked("openai_base_url", settings["openai_base_url"])
    if not _logged_in(person, settings):
        # a person's OPENAI_BASE_URL takes the name of that upstream, and Codex would not have gone
        # there
        return OPENAI if person.env.get("OPENAI_BASE_URL") else None
    if str(settings.get("chatgpt_base_url") or _CHATGPT_BASE_URL).rstrip("/") != _CHATGPT_BASE_URL:
        raise _ElsewhereError("its chatgpt_base_url tells it where its calls go")
    return CHATGPT


def _logged_in(person: Person, settings: dict[str, Any]) -> bool:
    """Return whether Codex has a ChatGPT login, and no API key. Raises `_ElsewhereError` and
    `UnreadableError`."""
    env = person.env
    store = settings.get("cli_auth_credentials_store", "file")
    if store != "file":
        raise _ElsewhereError(
            f"its login is in the store '{store}', "
            "so it is not known where its calls go; set openai_base_url"
        )
    if env.get("CODEX_ACCESS_TOKEN"):
        raise _ElsewhereError("CODEX_ACCESS_TOKEN decides where its calls go")
    login = json_file(person.read, f"{_home(env)}/auth.json")
    mode = login.get("auth_mode") or (
        "chatgpt" if login.get("tokens") and not login.get("OPENAI_API_KEY") else "apikey"
    )
    if mode not in ("apikey", "chatgpt"):
        raise _ElsewhereError(f"its login is of the kind '{mode}'")
    if mode == "chatgpt" and env.get("CODEX_API_KEY"):
        raise _ElsewhereError(
            "it has a ChatGPT login and CODEX_API_KEY, which only 'codex exec' uses; "
            "unset the variable"
        )
    return mode == "chatgpt"


def _account(person: Person) -> str:
    """Return a hash of the credential of its ChatGPT login; empty if there is none. Raises
    `UnreadableError`."""
    login = json_file(person.read, f"{_home(person.env)}/auth.json")
    token = at(login, "tokens", "access_token")
    return digest(token) if isinstance(token, str) and token else ""


def _overrides(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in _values(words, "-c", "--config"):
        key, _, value = word.partition("=")
        yield key.strip(), value.strip()


def _values(words: Sequence[str], short: str, long: str) -> Iterator[str]:
    """Yield the values of an option, in order: `-c x`, `-cx`, `-c=x`, `--config x`,
    `--config=x`."""
    for word, following in zip(words, (*words[1:], ""), strict=False):
        if word in (short, long):
            yield following
        elif word.startswith(f"{long}="):
            yield word.removeprefix(f"{long}=")
        elif word.startswith(short):
            yield word.removeprefix(short).removeprefix("=")


def _plain(value: str) -> str:
    """Return a value of `-c` as Codex reads it: as TOML, else as it is."""
    try:
        return str(tomllib.loads(f"value = {value}")["value"])
    except ValueError:
        return value
