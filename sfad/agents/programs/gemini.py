"""Gemini CLI: `gemini --output-format stream-json`, and its session files.

From a recording (tests/agents/streams/) and its source, packages/core/src/output/ and
packages/cli/src/nonInteractiveCli.ts. Gemini CLI tells usage only in the result, so a hard stop
needs reservations. A process prints one result. Until then its output is estimated from what it
says and calls, and its input is unknown.

Session files (tests/agents/sessions/, version 0.61.0) are
GEMINI_CLI_HOME/.gemini/tmp/PROJECT/chats/session-TIME-ID8.jsonl.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from ...protocol.known import KEYS
from ...protocol.types import Tokens
from .. import counters
from ..counters import MAX_NAME
from ..line_meter import (
    AgentFailure,
    LineMeter,
    SessionMeter,
    Speech,
    TextBreak,
    TextDelta,
    ToolCall,
    WholeText,
)
from ..program import (
    ANY_NAME,
    AgentProgram,
    SessionFiles,
    SessionPlace,
    SessionSearch,
    first_id,
    sorted_words,
    values,
)
from ..setups import GATEWAY, Person, Setup, TreeUpstream, at, dotenv, json_file, merged, upwards

_LOOP = "Loop detected"
"""What it says, as a warning, when it ends because its model repeats itself; its result is a
success nevertheless."""


class _GeminiStats(msgspec.Struct):
    total_tokens: Any = 0
    input_tokens: Any = 0
    output_tokens: Any = 0
    cached: Any = 0

    def tokens(self) -> Tokens:
        """What the total has beyond input and output are the model's thoughts, which are billed as
        output."""
        output = max(
            counters.number(self.output_tokens),
            counters.number(self.total_tokens) - counters.number(self.input_tokens),
        )
        return counters.tokens_in_all(total=self.input_tokens, read=self.cached, output=output)


class _GeminiAllStats(_GeminiStats):
    models: dict[str, _GeminiStats] | None = None


class _GeminiError(msgspec.Struct):
    type: Any = None
    message: Any = None


class _GeminiEvent(msgspec.Struct):
    type: str = ""
    model: str = ""
    session_id: str = ""
    role: str = ""
    delta: bool = False
    content: Any = None
    tool_name: Any = None
    tool_id: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"")
    status: str = ""
    severity: Any = None
    message: Any = None
    error: _GeminiError | None = None
    stats: _GeminiAllStats | None = None


class _GeminiState(msgspec.Struct, array_like=True):
    model: str = ""
    speaking: bool = False
    calls: counters.RecentIds[bool] = msgspec.field(default_factory=counters.RecentIds[bool])
    written: counters.Estimate = msgspec.field(default_factory=counters.Estimate)
    looped: bool = False
    """It has broken off a reply: the usage of that is in no figure."""


class GeminiMeter(LineMeter[_GeminiEvent, _GeminiState]):
    types = ("init", "message", "tool_use", "result", "error")
    event_type = _GeminiEvent
    state_type = _GeminiState

    def _take(self, event: _GeminiEvent) -> None:
        if event.type == "message":
            self._say(event)
        elif event.type in {"init", "tool_use", "result"}:
            self._state.speaking = False
            if event.type == "init":
                # `auto` is none: it chooses one for each call, which its session file names
                self._state.model = (
                    "" if event.model.startswith("auto") else event.model[: 4 * MAX_NAME]
                )
                self.reading.session = event.session_id[:MAX_NAME]
                self.reading.finished, self.reading.partial = False, True
            elif event.type == "tool_use":
                self._call(event)
            else:
                self._conclude(event)
        elif event.type == "error":
            self._state.looped |= isinstance(event.message, str) and event.message.startswith(_LOOP)
            if event.severity != "warning":
                counters.failed_call_in_words(self.reading, event.message)
        else:
            return
        counters.recognised(self.reading)

    def _say(self, event: _GeminiEvent) -> None:
        said = event.role == "assistant"
        if said and not (self._state.speaking and event.delta):
            counters.message(self.reading)
        self._state.speaking = said and event.delta
        if said:
            self._write(event.content)

    def _call(self, event: _GeminiEvent) -> None:
        if self._state.calls.first(event.tool_id, True):
            counters.turn(self.reading, event.tool_name)
            self._write(event.parameters)

    def _write(self, text: Any) -> None:
        self._state.written.grow(self.reading, self._state.model, text)

    def _conclude(self, event: _GeminiEvent) -> None:
        error = event.error or _GeminiError()
        said = f"it ended with {event.status}" if event.status else None
        self.reading.failed = (
            None if event.status == "success" else counters.words(error.message, error.type, said)
        )
        self.reading.finished = True
        if event.stats is None:
            return
        self._state.written.withdraw(self.reading)
        self.reading.partial = self._state.looped
        for name, stats in (event.stats.models or {self._state.model: event.stats}).items():
            used = stats.tokens()
            if used.input + used.output:
                counters.add(self.reading.models, name, used)


class _GeminiTokens(msgspec.Struct):
    input: Any = 0
    output: Any = 0
    cached: Any = 0
    thoughts: Any = 0
    tool: Any = 0


class _GeminiCall(msgspec.Struct):
    id: str = ""
    name: Any = None


class _GeminiLine(msgspec.Struct, rename="camel"):
    type: str = ""
    id: str = ""
    timestamp: Any = None
    model: str = ""
    content: msgspec.Raw = msgspec.Raw(b"")
    tokens: _GeminiTokens | None = None
    tool_calls: list[_GeminiCall] | None = None


class GeminiSession(SessionMeter[_GeminiLine]):
    """A message is written with its tokens, and again when its tool calls have ended: the last line
    of an id counts."""

    types = ("user", "gemini")
    event_type = _GeminiLine
    _unanswered = False

    def _take(self, event: _GeminiLine) -> None:
        if not self._in_time(event.timestamp):
            return
        if event.type == "user":
            # a reply that was interrupted is not saved; the results of tools, of which several may
            # come, are a user's lines, too
            self.reading.broken |= self._unanswered and not bytes(event.content).startswith(
                b'[{"functionResponse"'
            )
            self._unanswered = True
            self._asked()
        elif event.type == "gemini":
            self._unanswered = False
            counters.recognised(self.reading)
            self._say(event)

    def _say(self, event: _GeminiLine) -> None:
        # the results of tools go back to the model
        self.reading.partial = event.tokens is None or bool(event.tool_calls)
        told = event.tokens or _GeminiTokens()
        output = counters.number(told.output) + counters.number(told.thoughts)
        total = counters.number(told.input) + counters.number(told.tool)
        used = counters.tokens_in_all(total=total, read=told.cached, output=output)
        self._charge(event.id, event.model, used)
        for call in event.tool_calls or ():
            if self._state.calls.first(call.id, True):
                counters.turn(self.reading, call.name)


_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
_VALUED = frozenset({"-m", "--model", "-p", "--prompt", "-i", "--prompt-interactive", "-w",
                     "--worktree", "--approval-mode", "-r", "--resume", "--session-file",
                     "--session-id", "--delete-session", "-o", "--output-format"})  # fmt: skip
_LISTED = frozenset({
    "--policy", "--admin-policy", "--allowed-mcp-server-names", "--allowed-tools", "-e",
    "--extensions", "--include-directories",
})  # fmt: skip
"""Options with values (0.61)."""
_OF_SESSION = frozenset(
    {
        "-p",
        "--prompt",
        "-i",
        "--prompt-interactive",
        "-r",
        "--resume",
        "--session-file",
        "--session-id",
    }
)


class _GeminiFiles(SessionFiles):
    program = "gemini"
    meter = GeminiSession
    variable = "GEMINI_CLI_HOME"
    resume_words = frozenset({"--resume", "-r"})

    def session_id(self, argv: Sequence[str]) -> str | None:
        given = first_id(argv, self.program, "--session-id", "--resume", "-r")
        # `--resume` also takes `latest` and a number
        return given if given is not None and _UUID.fullmatch(given) else None

    def project(self, cwd: str) -> str:
        return hashlib.sha256(cwd.encode(errors="surrogateescape")).hexdigest()

    def places(self, search: SessionSearch) -> list[SessionPlace]:
        home = search.env.get(self.variable) or search.env.get("HOME", "")
        last = f"-{search.session[:8]}" if search.session is not None else ""
        return [
            SessionPlace(
                f"{home}/.gemini/tmp", (ANY_NAME, "chats", re.compile(rf"session-.*{last}\.jsonl"))
            )
        ]

    def said(self, line: dict[str, Any]) -> tuple[Any, Any, Any]:
        return line.get("sessionId"), line.get("projectHash"), line.get("startTime")


class Gemini(AgentProgram):
    """`gemini`, and what runs it: `npx @google/gemini-cli`."""

    name = "gemini"
    # yargs takes a text that begins with - for an option unless it is attached to one
    command = (
        "gemini",
        "--output-format",
        "stream-json",
        "--model={model}",
        "{options}",
        "--prompt={task}",
    )
    introduces_task = frozenset({"-p", "--prompt"})
    variables = ("GCLOUD_", "CLOUD_SHELL=")
    # of a limit of 0.50 USD, single replies were a third and more: it used 126 % of it with events,
    # 167 % with text
    tells_in_time = False
    session_files = _GeminiFiles()

    def tool_options(self, allowed: Sequence[str], blocked: Sequence[str]) -> list[str]:  # noqa: ARG002 - it has no option for these
        # lets these run without a question; without a terminal, Gemini CLI refuses others that
        # would need one
        return [f"--allowed-tools={','.join(allowed)}"] if allowed else []

    def setup(self, person: Person) -> Setup:
        return setup(person)

    # it sends a first task before it has loaded the session (seen with 0.61)
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

    def new_meter(self, words: Sequence[str]) -> GeminiMeter:  # noqa: ARG002 - the stream tells everything
        return GeminiMeter()

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """Yield what an event says to the user. A message comes in deltas, and ends when anything
        else begins."""
        match event:
            case {"type": "message", "role": "assistant", "delta": True, "content": str(text)}:
                yield TextDelta(text)
                return
            case {"type": "message", "role": "assistant", "content": str(text)}:
                yield WholeText(text)
            case {"type": "tool_use"}:
                yield ToolCall(event.get("tool_name"), event.get("parameters"))
            case {"type": "result", "status": str(status)} if status != "success":
                yield AgentFailure(_failure(event.get("error"), status))
        yield TextBreak()


def _failure(error: Any, status: str) -> str:
    told = error if isinstance(error, dict) else {}
    return counters.words(told.get("message"), told.get("type"), f"it ended with {status}")


PROGRAM = Gemini()


# ---- Gemini CLI (0.61): where its calls go
#
# Its settings, the later taking precedence: the system's defaults, `~/.gemini/settings.json`,
# `.gemini/settings.json` of the working directory, the system's own. One `.env` file is read: the
# first that is found upwards from the working directory (`.gemini/.env` before `.env`), then in the
# home directory. Variables that are set take precedence over it. In a folder that is not trusted,
# the folder's settings and `.gemini/.env` do not count, and of a `.env` only keys do.
#
# GOOGLE_GEMINI_BASE_URL is followed with an API key. With a Google account or Vertex AI, calls go
# elsewhere, whatever it says.
#
# Where no setting chooses the key, the variable chooses a login that does not start without a
# terminal ("Invalid auth method selected"), and no variable chooses another. System settings could,
# but since 0.60 they count only in a file that nobody but root can change. A home of its own for
# the program (GEMINI_CLI_HOME) would lose what it saves: it writes settings, and replaces other
# files, in that home. So Node.js executes `gemini_first.mjs` first, which hides the variable and
# leads the calls itself. If it is not executed, the program does not start: no call goes around the
# gateway unseen. In a terminal the program would still ask for its login, so the module also shows
# it a choice in the system's defaults. (Gemini CLI ignores that in a sandbox, where no file is
# root's.) The program starts tools only after its first call; they get the variables of any
# program. Tried with 0.52 to 0.61.


BASE_URL = "GOOGLE_GEMINI_BASE_URL"
_SETTINGS = "GEMINI_CLI_SYSTEM_SETTINGS_PATH"
_CHOOSE = (
    "to use a key instead, set security.auth.selectedType to "
    "gemini-api-key in ~/.gemini/settings.json"
)
_SYSTEM = "/etc/gemini-cli"
_KEYS_ONLY = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")
_OPTIONS = "NODE_OPTIONS"
_FIRST = quote(Path(__file__).with_name("gemini_first.mjs").read_text())
_GOOGLE_LOGIN = {"oauth-personal", "cloud-shell", "compute-default-credentials"}


def setup(person: Person) -> Setup:
    """Return how Gemini CLI is routed through the gateway. Raises `UnreadableError`."""
    found = list(dict.fromkeys(_routed(person, trusted) for trusted in _trust(person)))
    # to lead the calls is right whether or not the key is chosen
    if len({replace(each, appended=()) for each in found}) == 1:
        return max(found, key=lambda each: len(each.appended))
    what = (
        "where Gemini CLI's calls go depends on whether it trusts "
        f"{person.cwd}; set GEMINI_CLI_TRUST_WORKSPACE"
    )
    return Setup("gemini", direct=what)


def _routed(person: Person, trusted: bool) -> Setup:
    settings = _settings(person, trusted=trusted)
    env = _environment(person, settings, trusted=trusted)
    chosen = at(settings, "security", "auth", "selectedType") or settings.get("selectedAuthType")
    login = chosen or _login_of(env)
    if login in _GOOGLE_LOGIN:
        what = (
            f"Gemini CLI uses the login '{login}', "
            f"whose calls go to cloudcode-pa.googleapis.com; {_CHOOSE}"
        )
        return Setup("gemini", direct=what)
    if login == "vertex-ai":
        return Setup(
            "gemini",
            direct=(
                f"Gemini CLI uses Vertex AI, whose requests are signed for its own host; {_CHOOSE}"
            ),
        )
    url = env.get(BASE_URL, "").rstrip("/")
    name = "gemini" if url == person.env.get(BASE_URL, "").rstrip("/") else "gemini-cli"
    own = (TreeUpstream(name, url, "gemini"),) if url else ()
    keys = KEYS["gemini"] if own else ()
    address = f"{GATEWAY}/{name}"
    first = () if chosen else ((_OPTIONS, _first(address, person)),)
    return Setup("gemini", own, env=((BASE_URL, address),), appended=first, keys=keys)


def _first(address: str, person: Person) -> str:
    """Return the option with which Node.js executes `gemini_first.mjs` first."""
    path = _defaults(person.env)
    shown = merged(
        json_file(person.read, path),
        {"security": {"auth": {"selectedType": "gemini-api-key"}}},
    )
    module = _FIRST.replace(quote("{defaults}"), quote(json.dumps(path)))
    module = module.replace(quote("{shown}"), quote(json.dumps(json.dumps(shown))))
    return "--import=data:text/javascript," + module.replace(quote("{address}"), address)


def _login_of(env: Mapping[str, str]) -> str | None:
    """Return the login, where no setting chooses one; `None` for a key."""
    if env.get("CLOUD_SHELL") == "true" or env.get("GEMINI_CLI_USE_COMPUTE_ADC") == "true":
        return "compute-default-credentials"  # before all else: it saves this as the user's choice
    if env.get("GOOGLE_GENAI_USE_GCA") == "true":
        return "oauth-personal"
    if env.get("GOOGLE_GENAI_USE_VERTEXAI") == "true":
        return "vertex-ai"
    return None


def _home(env: Mapping[str, str]) -> str:
    return env.get("GEMINI_CLI_HOME") or env.get("HOME") or "/"


def _trust(person: Person) -> tuple[bool, ...]:
    """Return whether the program trusts the working directory; both, where a list of folders or a
    person decides."""
    env = person.env
    said = env.get("GEMINI_CLI_TRUST_WORKSPACE")
    if env.get("GEMINI_RESTRICTED_MODE") == "true" or said == "false":
        return (False,)
    if (
        said == "true"
        or at(_settings(person, trusted=False), "security", "folderTrust", "enabled") is False
    ):
        return (True,)
    return (True, False)


def _settings(person: Person, *, trusted: bool) -> dict[str, Any]:
    env, read = person.env, person.read
    system = env.get(_SETTINGS) or f"{_SYSTEM}/settings.json"
    defaults = _defaults(env)
    own = [person.cwd] if trusted and person.cwd != _home(env) else []
    directories = [_home(env), *own]
    files = [defaults, *(f"{directory}/.gemini/settings.json" for directory in directories), system]
    return merged(*(json_file(read, path) for path in files))


def _defaults(env: Mapping[str, str]) -> str:
    system = env.get(_SETTINGS) or f"{_SYSTEM}/settings.json"
    return (
        env.get("GEMINI_CLI_SYSTEM_DEFAULTS_PATH")
        or f"{os.path.dirname(system)}/system-defaults.json"
    )


def _environment(person: Person, settings: Mapping[str, Any], *, trusted: bool) -> dict[str, str]:
    ignored = at(settings, "advanced", "ignoreLocalEnv") is True
    for path in _candidates(person, trusted=trusted, ignored=ignored):
        data = person.read(path)
        if data is not None:
            loaded = dotenv(data)
            usable = (
                loaded
                if trusted
                else {key: value for key, value in loaded.items() if key in _KEYS_ONLY}
            )
            return usable | dict(person.env)
    return dict(person.env)


def _candidates(person: Person, *, trusted: bool, ignored: bool) -> Iterator[str]:
    """Yield the paths of the `.env` file, of which the program reads the first that exists."""
    home = _home(person.env)
    for directory in (*upwards(person.cwd), home):
        if trusted:
            yield f"{directory}/.gemini/.env"
        if not ignored or directory == home:
            yield f"{directory}/.env"
