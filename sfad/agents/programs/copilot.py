"""GitHub Copilot CLI (1.0): `copilot --output-format json`, its session files, and where its calls
go.

From recordings (tests/agents/streams/, tests/agents/sessions/) and the schema that its package
contains (schemas/session-events.schema.json). Its events tell messages and tool calls, and no
tokens. Those are in the session file, COPILOT_HOME/session-state/SESSION/events.jsonl: a record for
each call of the model, those of subagents too.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

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
from ..own_server import OwnServer
from ..program import (
    SESSION_ID,
    AgentProgram,
    SessionFiles,
    SessionPlace,
    SessionSearch,
    first_id,
    sorted_words,
    values,
)
from ..setups import GATEWAY, Person, Setup, TreeUpstream


class _CopilotUsage(msgspec.Struct, rename="camel"):
    model: str = ""
    input_tokens: Any = 0
    output_tokens: Any = 0
    cache_read_tokens: Any = 0
    cache_write_tokens: Any = 0


class _CopilotData(msgspec.Struct, rename="camel"):
    session_id: str = ""
    message: Any = None
    error_message: Any = None
    status_code: Any = None
    tool_call_id: str = ""
    tool_name: Any = None
    api_call_id: str = ""
    tool_requests: list[Any] = []
    usage: _CopilotUsage | None = None


class _CopilotEvent(msgspec.Struct, rename="camel"):
    type: str = ""
    id: str = ""
    timestamp: Any = None
    session_id: str = ""
    exit_code: Any = None
    agent_id: Any = None
    """Of a subagent."""
    data: _CopilotData | None = None


class _CopilotState(msgspec.Struct, array_like=True):
    calls: counters.RecentIds[bool] = msgspec.field(default_factory=counters.RecentIds[bool])
    answers: counters.RecentIds[bool] = msgspec.field(default_factory=counters.RecentIds[bool])
    said: str | None = None
    """The last error that it told."""


class CopilotMeter(LineMeter[_CopilotEvent, _CopilotState]):
    types = (
        "user.message",
        "assistant.message",
        "tool.execution_start",
        "model.call_failure",
        "session.error",
        "result",
    )
    event_type = _CopilotEvent
    state_type = _CopilotState

    def _take(self, event: _CopilotEvent) -> None:
        data = event.data
        if event.type == "result":
            self._conclude(event)
            return
        if data is None:
            return
        match event.type:
            case "user.message":
                self.reading.partial, self.reading.finished = True, False
            case "assistant.message":
                # a reply that is split at its thoughts is several messages of one call
                if self._state.answers.first(data.api_call_id or event.id, True):
                    counters.message(self.reading)
            case "tool.execution_start":
                if self._state.calls.first(data.tool_call_id, True):
                    counters.turn(self.reading, data.tool_name)
            case "model.call_failure":
                counters.failed_call(self.reading, data.status_code, data.error_message)
                return
            case "session.error":
                self._state.said = counters.words(data.message)
            case _:
                return
        counters.recognised(self.reading)

    def _conclude(self, event: _CopilotEvent) -> None:
        self.reading.session = event.session_id[:MAX_NAME]
        self.reading.finished, self.reading.partial = True, False
        # it goes on after some errors, and then its code is 0
        self.reading.failed = counters.words(self._state.said) if event.exit_code else None
        counters.recognised(self.reading)


class CopilotSession(SessionMeter[_CopilotEvent]):
    types = (
        "user.message",
        "assistant.message",
        "tool.execution_start",
        "session.usage_record",
        "session.error",
    )
    event_type = _CopilotEvent

    def _take(self, event: _CopilotEvent) -> None:
        data = event.data
        if data is None or not self._in_time(event.timestamp):
            return
        if event.type == "user.message":
            self._asked()
        elif event.type == "tool.execution_start":
            if self._state.calls.first(data.tool_call_id, True):
                counters.turn(self.reading, data.tool_name)
        elif event.type == "assistant.message" and event.agent_id is None:
            # the results of tools go back to the model
            self.reading.partial = bool(data.tool_requests)
        elif event.type == "session.usage_record" and data.usage is not None:
            counters.recognised(self.reading)
            self._charge(event.id, data.usage.model, _tokens(data.usage))
        elif event.type == "session.error":
            counters.failed_call(self.reading, data.status_code, data.message)


def _tokens(told: _CopilotUsage) -> Any:
    """Return tokens. Its input includes what the cache had, whichever API it uses."""
    read, written = told.cache_read_tokens, told.cache_write_tokens
    return counters.tokens_in_all(
        total=told.input_tokens, read=read, written=written, output=told.output_tokens
    )


class _CopilotFiles(SessionFiles):
    program = "copilot"
    meter = CopilotSession
    variable = "COPILOT_HOME"
    resume_words = frozenset({"--resume", "-r", "--continue"})

    def session_id(self, argv: Sequence[str]) -> str | None:
        return first_id(argv, self.program, "--session-id", "--resume", "-r")

    def places(self, search: SessionSearch) -> list[SessionPlace]:
        session = search.session if search.session is not None else SESSION_ID
        return [
            SessionPlace(
                search.directory(self.variable, ".copilot") + "/session-state",
                (session, "events.jsonl"),
            )
        ]

    def said(self, line: dict[str, Any]) -> tuple[Any, Any, Any]:
        match line:
            case {
                "type": "session.start",
                "data": {"sessionId": session, "context": {"cwd": cwd}},
                "timestamp": began,
            }:
                return session, cwd, began
        return None, None, None


_VALUED = frozenset({
    "-i", "--interactive", "-p", "--prompt", "--model", "--reasoning-effort", "--context",
    "--auto-tier", "--agent", "-r", "--resume", "-n", "--name", "--session-id", "--connect", "-C",
    "--log-dir", "--extension-sdk-path", "--log-level", "--stream", "--output-format", "--share",
    "--add-dir", "--attachment", "--disable-mcp-server", "--add-github-mcp-toolset",
    "--add-github-mcp-tool", "--plugin-dir", "--additional-mcp-config", "--mcp-github-auth",
    "--max-autopilot-continues", "--mode", "--bash-env", "--mouse", "--environment-host",
    "--environment-compute-id", "--dynamic-retrieval", "--enable-mcp-server", "--max-ai-credits",
    "--usage-output-file",
})  # fmt: skip
_LISTED = frozenset({
    "--allow-tool", "--deny-tool", "--available-tools", "--excluded-tools", "--secret-env-vars",
    "--allow-url", "--deny-url",
})  # fmt: skip
"""Options with values (1.0)."""
_OF_SESSION = frozenset({
    "-i", "--interactive", "-p", "--prompt", "-r", "--resume", "--continue", "--session-id",
    "--connect", "-n", "--name", "--attachment",
})  # fmt: skip


_OWN_SERVER = OwnServer(
    valued=_VALUED, listed=_LISTED, outside={"--connect": "a session elsewhere"}
)


class Copilot(AgentProgram):
    """`copilot`, and what runs it: `npx @github/copilot`."""

    name = "copilot"
    command = (
        "copilot", "--output-format=json", "--no-auto-update", "--session-id={session}",
        "--model={model}", "{options}", "--prompt={task}",
    )  # fmt: skip
    introduces_task = frozenset({"-p", "--prompt"})
    variables = ("COPILOT_",)
    session_files = _CopilotFiles()
    own_server = _OWN_SERVER

    def tool_options(self, allowed: Sequence[str], blocked: Sequence[str]) -> list[str]:
        # --available-tools hides the others from the model; --allow-tool lets these run without a
        # question
        words = (
            [f"--available-tools={','.join(allowed)}", f"--allow-tool={','.join(allowed)}"]
            if allowed
            else []
        )
        return words + ([f"--excluded-tools={','.join(blocked)}"] if blocked else [])

    def resumed(
        self, words: Sequence[str], session: str, task: str | None, *, terminal: bool
    ) -> list[str] | None:
        options, _ = sorted_words(words, valued=_VALUED, listed=_LISTED, without=_OF_SESSION)
        told = "--interactive" if terminal else "--prompt"
        return [*options, f"--resume={session}", *([f"{told}={task}"] if task is not None else [])]

    def directory(self, words: Sequence[str]) -> str | None:
        return next(reversed(values(words, "-C")), None)

    def prints_events(self, words: Sequence[str]) -> bool:
        return "json" in values(words, "--output-format")

    def new_meter(self, words: Sequence[str]) -> CopilotMeter:  # noqa: ARG002 - the stream tells everything
        return CopilotMeter()

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """Yield what an event says to the user. Subagents speak to the main agent, so only their
        tool calls are of interest."""
        main = event.get("agentId") is None
        match event:
            case {"type": "assistant.message_start"} if main:
                yield TextBreak()
            case {"type": "assistant.message_delta", "data": {"deltaContent": str(text)}} if main:
                yield TextDelta(text)
            case {"type": "assistant.message", "data": {"content": str(text)}} if main and text:
                yield WholeText(text)
            case {"type": "tool.execution_start", "data": {"toolName": name} as data}:
                yield ToolCall(name, data.get("arguments"))
            case {"type": "session.error", "data": {"message": message}}:
                yield AgentFailure(counters.words(message))

    def setup(self, person: Person) -> Setup:
        """Return how it is routed through the gateway: by the variable with the address of the
        person's own provider."""
        env = person.env
        url = env.get(_ADDRESS, "").rstrip("/")
        kind, wire = env.get(_TYPE) or "openai", env.get(_WIRE) or "completions"
        if not url:
            return Setup(
                self.name,
                direct=(
                    "Copilot CLI uses GitHub's models, whose address is fixed, "
                    f"unless {_ADDRESS} is set"
                ),
            )
        if kind not in {"openai", "anthropic"}:
            return Setup(
                self.name, direct=f"{_TYPE} is '{kind}', whose paths the gateway does not know"
            )
        api = "anthropic" if kind == "anthropic" else _APIS.get(wire)
        if api is None:
            return Setup(self.name, direct=f"{_WIRE} is '{wire}', which the gateway does not know")
        # the gateway has no WebSockets
        unset = ("COPILOT_PROVIDER_TRANSPORT",) if env.get("COPILOT_PROVIDER_TRANSPORT") else ()
        upstream = TreeUpstream(self.name, url, api)
        return Setup(
            self.name,
            (upstream,),
            env=((_ADDRESS, f"{GATEWAY}/{self.name}"),),
            unset=unset,
            keys=_KEYS,
        )


PROGRAM = Copilot()


# ---- where its calls go
#
# Without a provider of the person's own, its calls go to GitHub (api.githubcopilot.com, or the host
# of the login), where they cost requests of a plan and not tokens. With COPILOT_PROVIDER_BASE_URL
# they go there; no option and no file of settings names another address. It asks a proxy only for
# hosts that NO_PROXY does not name.


_ADDRESS = "COPILOT_PROVIDER_BASE_URL"
_TYPE = "COPILOT_PROVIDER_TYPE"
_WIRE = "COPILOT_PROVIDER_WIRE_API"
_APIS = {"completions": "openai-chat", "responses": "openai-responses"}
_KEYS = ("COPILOT_PROVIDER_API_KEY", "COPILOT_PROVIDER_BEARER_TOKEN")
