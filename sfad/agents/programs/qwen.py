"""Qwen Code (0.15): `qwen --output-format stream-json`, its session files, and where its calls go.

From recordings (tests/agents/streams/, tests/agents/sessions/) and its source,
packages/cli/src/nonInteractive/io/ and packages/core/src/services/chatRecordingService.ts. It is a
fork of Gemini CLI, and its events have the form of Claude Code's: an answer of the model is an
event for its text, without usage, and one for its tool calls, with the usage of the answer; or one
event with both. The usage of the result is that of all calls, so it has those of subagents and
helpers, too.

Session files are QWEN_RUNTIME_DIR/projects/DIRECTORY/chats/SESSION.jsonl, in ~/.qwen or QWEN_HOME
by default. They have a line for each call of the model, whoever makes it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...protocol.types import Tokens
from .. import counters, setups
from ..counters import MAX_NAME
from ..line_meter import (
    AgentFailure,
    FinalText,
    LineMeter,
    SessionMeter,
    Speech,
    TextBreak,
    TextDelta,
    ToolCall,
    WholeText,
)
from ..program import (
    AgentProgram,
    SessionFiles,
    SessionPlace,
    SessionSearch,
    first_id,
    sorted_words,
    values,
)
from ..setups import Person, Setup, at, dotenv, json_file, merged, upwards

_API_ERROR = re.compile(r"\[API Error: (?:(\d{3})\b)?")
"""How the text begins that it prints instead of an answer; its result is a success nevertheless."""


class _QwenUsage(msgspec.Struct):
    input_tokens: Any = 0
    output_tokens: Any = 0
    cache_read_input_tokens: Any = 0
    total_tokens: Any = 0

    def tokens(self) -> Tokens:
        return _tokens(
            self.input_tokens, self.output_tokens, self.cache_read_input_tokens, self.total_tokens
        )


def _tokens(given: Any, output: Any, read: Any, total: Any) -> Tokens:
    """Return tokens. What the total has beyond input and output are thoughts, which some APIs do
    not count as output."""
    written = max(counters.number(output), counters.number(total) - counters.number(given))
    return counters.tokens_in_all(total=given, read=read, output=written)


class _QwenBlock(msgspec.Struct):
    type: str = ""
    text: Any = None
    id: str = ""
    name: Any = None
    input: msgspec.Raw = msgspec.Raw(b"")


class _QwenMessage(msgspec.Struct):
    model: str = ""
    content: list[_QwenBlock] | str = []
    usage: _QwenUsage | None = None


class _QwenError(msgspec.Struct):
    message: Any = None


class _QwenEvent(msgspec.Struct):
    type: str = ""
    subtype: str = ""
    session_id: str = ""
    model: str = ""
    parent_tool_use_id: Any = None
    message: _QwenMessage | None = None
    is_error: bool = False
    result: Any = None
    error: _QwenError | None = None
    usage: _QwenUsage | None = None


class _QwenState(msgspec.Struct, array_like=True):
    model: str = ""
    speaking: bool = False
    """An answer has begun whose usage is still to come."""
    told: Tokens = Tokens()
    """The usage that this process has told with its answers."""
    calls: counters.RecentIds[bool] = msgspec.field(default_factory=counters.RecentIds[bool])
    written: counters.Estimate = msgspec.field(default_factory=counters.Estimate)


class QwenMeter(LineMeter[_QwenEvent, _QwenState]):
    types = ("system", "assistant", "user", "result")
    event_type = _QwenEvent
    state_type = _QwenState

    def __init__(self, *, resumed: bool = False) -> None:
        """`resumed`: the totals at the end begin with what earlier processes have used in the
        session (seen with 0.15.10)."""
        super().__init__()
        self._resumed = resumed

    def _take(self, event: _QwenEvent) -> None:
        if event.type == "system" and event.subtype == "init":
            self._state.model, self._state.speaking, self._state.told = (
                event.model[: 4 * MAX_NAME],
                False,
                Tokens(),
            )
            self.reading.session = event.session_id[:MAX_NAME]
            self.reading.finished, self.reading.partial = False, True
        elif event.type == "assistant" and event.message is not None:
            self._answer(event, event.message)
        elif event.type == "user":
            self._state.speaking = False
            return
        elif event.type == "result":
            self._conclude(event)
        else:
            return
        counters.recognised(self.reading)

    def _answer(self, event: _QwenEvent, message: _QwenMessage) -> None:
        blocks = message.content if isinstance(message.content, list) else []
        if (failed := _api_error(blocks)) is not None:
            counters.failed_call(self.reading, *failed)
            return
        used = message.usage.tokens() if message.usage is not None else Tokens()
        main, known = event.parent_tool_use_id is None, used.input + used.output > 0
        if known if not main else not self._state.speaking:
            counters.message(self.reading)
        if main:
            self._state.speaking = not known
        for block in blocks:
            if block.type == "tool_use" and self._state.calls.first(block.id, True):
                counters.turn(self.reading, block.name)
            self._state.written.grow(
                self.reading, message.model, block.text if block.type != "tool_use" else block.input
            )
        if known:
            self._state.written.withdraw(self.reading)
            self._state.told = counters.plus(self._state.told, used)
            counters.add(self.reading.models, message.model, used)

    def _conclude(self, event: _QwenEvent) -> None:
        said = event.error.message if event.error is not None else None
        if event.is_error:
            self.reading.failed = counters.words(
                said, event.result, f"it ended with {event.subtype}"
            )
        else:
            self.reading.failed = event.result[:MAX_NAME] if _is_api_error(event.result) else None
        self.reading.finished, self._state.speaking = True, False
        if event.usage is None:
            return
        self._state.written.withdraw(self.reading)
        self.reading.partial = self._resumed
        if self._resumed:
            return
        total, told = event.usage.tokens(), self._state.told
        more = counters.tokens_in_all(
            total=max(total.input - told.input, 0),
            read=max(total.cached - told.cached, 0),
            output=max(total.output - told.output, 0),
        )
        if more.input + more.output:
            counters.add(self.reading.models, self._state.model, more)
        self._state.told = counters.plus(told, more)


def _is_api_error(text: Any) -> bool:
    return isinstance(text, str) and _API_ERROR.match(text) is not None


def _api_error(blocks: Sequence[_QwenBlock]) -> tuple[int | None, str] | None:
    """Return the status and the words of a call that failed, which it prints instead of an
    answer."""
    for block in blocks:
        if isinstance(block.text, str) and (found := _API_ERROR.match(block.text)) is not None:
            return int(found[1]) if found[1] else None, block.text
    return None


class _QwenCall(msgspec.Struct):
    id: str = ""
    name: Any = None


class _QwenPart(msgspec.Struct, rename="camel"):
    function_call: _QwenCall | None = None


class _QwenContent(msgspec.Struct):
    parts: list[_QwenPart] = []


class _QwenTelemetry(msgspec.Struct):
    name: str = msgspec.field(default="", name="event.name")
    model: str = ""
    input_token_count: Any = 0
    output_token_count: Any = 0
    cached_content_token_count: Any = 0
    total_token_count: Any = 0


class _QwenPayload(msgspec.Struct, rename="camel"):
    ui_event: _QwenTelemetry | None = None


class _QwenLine(msgspec.Struct, rename="camel"):
    type: str = ""
    uuid: str = ""
    timestamp: Any = None
    message: _QwenContent | None = None
    system_payload: _QwenPayload | None = None


class QwenSession(SessionMeter[_QwenLine]):
    """A call of the model is a line of telemetry with its usage, and then, if the main agent has
    made it, one with its answer."""

    types = ("user", "assistant", "system")
    event_type = _QwenLine
    _unanswered = False

    def _take(self, event: _QwenLine) -> None:
        if not self._in_time(event.timestamp):
            return
        if event.type == "user":
            self.reading.broken |= self._unanswered
            self._unanswered = True
            self._asked()
        elif event.type == "assistant":
            self._unanswered = False
            calls = [
                part.function_call
                for part in (event.message or _QwenContent()).parts
                if part.function_call is not None
            ]
            counters.recognised(self.reading)
            self.reading.partial = bool(calls)  # the results of tools go back to the model
            for call in calls:
                if self._state.calls.first(call.id, True):
                    counters.turn(self.reading, call.name)
        elif (
            event.type == "system"
            and event.system_payload is not None
            and event.system_payload.ui_event is not None
        ):
            self._call(event.uuid, event.system_payload.ui_event)

    def _call(self, line: str, told: _QwenTelemetry) -> None:
        if told.name == "qwen-code.api_response":
            counters.recognised(self.reading)
            used = (
                told.input_token_count,
                told.output_token_count,
                told.cached_content_token_count,
                told.total_token_count,
            )
            self._charge(line, told.model, _tokens(*used))


_VALUED = frozenset({
    "--telemetry-target", "--telemetry-otlp-endpoint", "--telemetry-otlp-protocol",
    "--telemetry-outfile", "--proxy", "-m", "--model", "-p", "--prompt", "-i",
    "--prompt-interactive", "--system-prompt", "--append-system-prompt", "--sandbox-image",
    "--approval-mode", "--channel", "--mcp-config", "--openai-logging-dir", "--openai-api-key",
    "--openai-base-url", "--input-format", "-o", "--output-format", "--json-fd", "--json-file",
    "--json-schema", "--input-file", "-r", "--resume", "--session-id", "--max-session-turns",
    "--disabled-slash-commands", "--auth-type",
})  # fmt: skip
_LISTED = frozenset({
    "--allowed-mcp-server-names", "--allowed-tools", "-e", "--extensions", "--include-directories",
    "--add-dir", "--core-tools", "--exclude-tools",
})  # fmt: skip
"""Options with values (0.15)."""
_OF_SESSION = frozenset(
    {
        "-p",
        "--prompt",
        "-i",
        "--prompt-interactive",
        "-c",
        "--continue",
        "-r",
        "--resume",
        "--session-id",
    }
)


class _QwenFiles(SessionFiles):
    program = "qwen"
    meter = QwenSession
    variable = "QWEN_HOME"
    resume_words = frozenset({"--resume", "-r", "--continue", "-c"})

    def session_id(self, argv: Sequence[str]) -> str | None:
        return first_id(argv, self.program, "--session-id", "--resume", "-r")

    def places(self, search: SessionSearch) -> list[SessionPlace]:
        directory = re.sub(r"[^a-zA-Z0-9]", "-", search.cwd)
        file = (
            f"{search.session}.jsonl"
            if search.session is not None
            else re.compile(r"[0-9a-f-]{36}\.jsonl")
        )
        return [
            SessionPlace(
                search.directory(self.variable, ".qwen") + "/projects", (directory, "chats", file)
            )
        ]

    def said(self, line: dict[str, Any]) -> tuple[Any, Any, Any]:
        return line.get("sessionId"), line.get("cwd"), line.get("timestamp")


class Qwen(AgentProgram):
    """`qwen`, and what runs it: `npx @qwen-code/qwen-code`."""

    name = "qwen"
    # yargs takes a text that begins with - for an option unless it is attached to one
    command = (
        "qwen", "--output-format", "stream-json", "--include-partial-messages", "--session-id",
        "{session}", "--model={model}", "--append-system-prompt={instructions}", "{options}",
        "--prompt={task}",
    )  # fmt: skip
    introduces_task = frozenset({"-p", "--prompt"})
    variables = ("QWEN_", "DASHSCOPE_")
    session_files = _QwenFiles()

    def tool_options(self, allowed: Sequence[str], blocked: Sequence[str]) -> list[str]:
        # --core-tools hides the others from the model; --allowed-tools lets these run without a
        # question
        words = (
            [f"--core-tools={','.join(allowed)}", f"--allowed-tools={','.join(allowed)}"]
            if allowed
            else []
        )
        return words + ([f"--exclude-tools={','.join(blocked)}"] if blocked else [])

    # it sends a first task before it has loaded the session (seen with 0.15.10)
    resumes_with_task_in_terminal = False

    def resumed(
        self, words: Sequence[str], session: str, task: str | None, *, terminal: bool
    ) -> list[str] | None:
        options, _ = sorted_words(words, valued=_VALUED, listed=_LISTED, without=_OF_SESSION)
        return [
            *options,
            "--resume",
            session,
            *([f"--prompt={task}"] if task is not None and not terminal else []),
        ]

    def prints_events(self, words: Sequence[str]) -> bool:
        return "stream-json" in values(words, "--output-format", "-o")

    def new_meter(self, words: Sequence[str]) -> QwenMeter:
        return QwenMeter(
            resumed=any(word.partition("=")[0] in _QwenFiles.resume_words for word in words)
        )

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """Yield what an event says to the user. Subagents speak to the main agent, so only their
        tool calls are of interest."""
        main = event.get("parent_tool_use_id") is None
        match event:
            case {"type": "assistant", "message": {"content": [*blocks]}}:
                for block in blocks:
                    match block:
                        case {"type": "text", "text": str(text)} if main and not _is_api_error(
                            text
                        ):
                            yield WholeText(text)
                        case {"type": "tool_use", "name": name}:
                            yield ToolCall(name, block.get("input"))
            case {"type": "stream_event", "event": {"type": "content_block_start"}} if main:
                yield TextBreak()
            case {
                "type": "stream_event",
                "event": {"delta": {"type": "text_delta", "text": str(text)}},
            } if main:
                if not _is_api_error(text):
                    yield TextDelta(text)
            case {"type": "result", "is_error": True}:
                error = event.get("error")
                said = error.get("message") if isinstance(error, dict) else None
                yield AgentFailure(
                    counters.words(
                        said, event.get("result"), f"it ended with {event.get('subtype')}"
                    )
                )
            case {"type": "result", "result": str(text)}:
                yield AgentFailure(counters.words(text)) if _is_api_error(text) else FinalText(text)

    def setup(self, person: Person) -> Setup:
        """Return how Qwen Code is routed through the gateway. Raises `UnreadableError`."""
        if (elsewhere := _elsewhere(person)) is not None:
            return Setup(self.name, direct=f"Qwen Code uses {elsewhere}")
        # it obeys the variables that are set for any program
        routed = setups.setup(person)
        return msgspec.structs.replace(routed, program=self.name, undone_by=_OTHER_ADDRESS)


PROGRAM = Qwen()


# ---- where its calls go
#
# Its settings, the later taking precedence: the system's defaults, `~/.qwen/settings.json`,
# `.qwen/settings.json` of the working directory, the system's own. `security.auth.selectedType` is
# the API; for `openai` and `anthropic` it obeys OPENAI_BASE_URL and ANTHROPIC_BASE_URL, unless an
# option or the settings name an address: in `security.auth.baseUrl`, `modelProviders` or `env`. It
# sends each call to a proxy that it knows (an option, `proxy` in the settings, the usual
# variables), also one to this machine. One `.env` file is read: the first that is found upwards
# from the working directory (`.qwen/.env` before `.env`), then in the home directory. Whether the
# folder is trusted does not matter here: what its files say is taken as said.


_OTHER_ADDRESS = r"(?s)--(openai-base-url|auth-type|proxy)(=.*)?"
_SYSTEM = "/etc/qwen-code"
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
_LED = {None, "openai", "anthropic"}


def _elsewhere(person: Person) -> str | None:
    """Return what leads its calls to an address that no variable names; `None` if nothing does."""
    settings = _settings(person)
    login = at(settings, "security", "auth", "selectedType")
    login = login or _login_of(person.env)
    if login not in _LED:
        return f"the login '{login}', whose address no variable names"
    if any(person.env.get(name) for name in _PROXIES):
        return "its proxy even for this machine, whatever NO_PROXY says"
    for keys in (("proxy",), ("security", "auth", "baseUrl"), ("modelProviders",), ("env",)):
        if at(settings, *keys):
            return f"'{'.'.join(keys)}' of its settings, which may name another address"
    if named := _named_in_env_files(person):
        return f"{named} of a .env file"
    return None


def _login_of(env: Mapping[str, str]) -> str | None:
    """Return the login, where no setting chooses one; `None` if it can be routed."""
    if env.get("QWEN_OAUTH"):
        return "qwen-oauth"
    if env.get("OPENAI_API_KEY") and env.get("OPENAI_MODEL") and env.get("OPENAI_BASE_URL"):
        return None
    return "gemini" if env.get("GEMINI_MODEL") or env.get("GOOGLE_MODEL") else None


def _home(env: Mapping[str, str]) -> str:
    return env.get("QWEN_HOME") or f"{env.get('HOME', '')}/.qwen"


def _settings(person: Person) -> dict[str, Any]:
    env, read = person.env, person.read
    system = env.get("QWEN_CODE_SYSTEM_SETTINGS_PATH") or f"{_SYSTEM}/settings.json"
    defaults = (
        env.get("QWEN_CODE_SYSTEM_DEFAULTS_PATH")
        or f"{system.rpartition('/')[0]}/system-defaults.json"
    )
    files = (
        defaults,
        f"{_home(env)}/settings.json",
        f"{person.cwd}/.qwen/settings.json",
        system,
    )
    return merged(*(json_file(read, path) for path in files))


def _named_in_env_files(person: Person) -> str | None:
    """Return a variable with an address, or with a place of settings, in a `.env` file that it may
    read."""
    env = person.env
    places = (
        *(f"{above}{own}" for above in upwards(person.cwd) for own in ("/.qwen", "")),
        _home(env),
        env.get("HOME", ""),
    )
    found = {name for place in places for name in dotenv(person.read(f"{place}/.env"))}
    return next(
        (
            name
            for name in sorted(found)
            if name in setups.VARIABLES or name in _PROXIES or name.startswith("QWEN_")
        ),
        None,
    )
