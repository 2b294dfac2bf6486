"""Claude Code: `claude -p --output-format stream-json`, and its session files.

From recordings of 2.1.197 (tests/agents/streams/) and
https://code.claude.com/docs/en/agent-sdk/cost-tracking: the events of one message share its id and
its usage, and their output tokens are a placeholder until the `result`. So these are estimated from
the text of the message until a `message_delta` or the `result` tells them. Calls that are not
streamed, such as the one for a title, are only in the `result`: without it the figures stay
partial.

Of several results in one stream the latest is right: `total_cost_usd` and `modelUsage` are running
totals of the process (https://github.com/anthropics/claude-code/issues/83239). `usage` is less
complete (a run stopped by its budget says 1000 input tokens there, and 2200 in `modelUsage`), so it
is used only where there is nothing else. In 2.1.197 each process counts its own usage. 2.1.330
saves its totals in the session file, and a process that resumes the session goes on from them: such
totals, which have more input than the process's own messages, are not used.

Session files (tests/agents/sessions/, version 2.1.330) are
CLAUDE_CONFIG_DIR/projects/DIRECTORY/SESSION.jsonl, and SESSION/subagents/agent-*.jsonl beside it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ...core.state.request import name_of
from ...protocol.known import KEYS
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
from ..own_server import Background, OwnServer
from ..program import (
    ANY_NAME,
    AgentProgram,
    FileName,
    SessionFiles,
    SessionPlace,
    SessionSearch,
    first_id,
    sorted_words,
    values,
)
from ..setups import GATEWAY, Person, Setup, TreeUpstream, at, json_file, json_object, merged

_CONTEXT = re.compile(r"\[[^\]]*\]$")
"""`modelUsage` calls a model with a large context `claude-opus-4-8[1m]`; messages and price lists
omit the brackets."""
_SYNTHETIC = "<synthetic>"
"""The model of messages that Claude Code writes itself, to tell an error."""
_ABORTED_CALL = "aborted_streaming"
"""Why an interrupted agent ended: it was waiting for the model. If no piece of the answer had
arrived, the totals omit that call, although the provider bills it (seen with 2.1.330)."""


class _ClaudeCaches(msgspec.Struct):
    ephemeral_1h_input_tokens: Any = 0


class _ClaudeUsage(msgspec.Struct):
    input_tokens: Any = 0
    output_tokens: Any = 0
    cache_read_input_tokens: Any = 0
    cache_creation_input_tokens: Any = 0
    cache_creation: _ClaudeCaches | None = None


class _ClaudeModelUsage(msgspec.Struct, rename="camel"):
    input_tokens: Any = 0
    output_tokens: Any = 0
    cache_read_input_tokens: Any = 0
    cache_creation_input_tokens: Any = 0


def _tokens(usage: _ClaudeUsage | _ClaudeModelUsage | None) -> Tokens:
    if usage is None:
        return Tokens()
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    caches = usage.cache_creation if isinstance(usage, _ClaudeUsage) else None
    long = caches.ephemeral_1h_input_tokens if caches is not None else 0
    return counters.tokens(
        fresh=usage.input_tokens, read=read, written=written, long=long, output=usage.output_tokens
    )


class _ClaudeBlock(msgspec.Struct):
    type: str = ""
    id: str = ""
    name: str = ""
    text: Any = None
    thinking: Any = None
    input: msgspec.Raw = msgspec.Raw(b"")


class _ClaudeMessage(msgspec.Struct):
    id: str = ""
    model: str = ""
    stop_reason: Any = None
    usage: _ClaudeUsage | None = None
    content: list[_ClaudeBlock] | str = []


class _ClaudeDelta(msgspec.Struct):
    text: Any = None
    thinking: Any = None
    partial_json: Any = None


class _ClaudePartial(msgspec.Struct):
    """What `--include-partial-messages` adds: the start of a message, its pieces, and the delta
    that ends it, which has the true output tokens."""

    type: str = ""
    message: _ClaudeMessage | None = None
    delta: _ClaudeDelta | None = None
    usage: _ClaudeUsage | None = None


class _ClaudeEvent(msgspec.Struct):
    type: str = ""
    subtype: Any = None
    attempt: Any = None
    error_status: Any = None
    error: Any = None
    tasks: Any = None
    session_id: str = ""
    parent_tool_use_id: str | None = None
    message: _ClaudeMessage | None = None
    event: _ClaudePartial | None = None
    aborted: bool = False
    """This is what had arrived of an answer when the agent was interrupted."""
    is_error: bool = False
    terminal_reason: Any = None
    api_error_status: Any = None
    result: Any = None
    errors: Any = None
    total_cost_usd: Any = None
    usage: _ClaudeUsage | None = None
    model_usage: dict[str, _ClaudeModelUsage] | None = msgspec.field(
        default=None, name="modelUsage"
    )


class _ClaudeCharge(msgspec.Struct, frozen=True, array_like=True):
    model: str
    used: Tokens
    results: int
    """How many results had been printed by then: a later result contains the message."""
    whole: int = 0
    """Bytes of the blocks that were printed complete."""
    pieces: int = 0
    """Bytes of the pieces of the same text that were printed before."""
    told: bool = False

    @property
    def output(self) -> int:
        return max(self.used.output, max(self.whole, self.pieces) // counters.BYTES_A_TOKEN)

    @property
    def guessed(self) -> int:
        """Output tokens of a message whose true ones are not told: what Claude Code prints of them
        until then is a placeholder."""
        return 0 if self.told else self.used.output


class _ClaudeState(msgspec.Struct, array_like=True):
    messages: counters.RecentIds[_ClaudeCharge] = msgspec.field(
        default_factory=counters.RecentIds[_ClaudeCharge]
    )
    calls: counters.RecentIds[bool] = msgspec.field(default_factory=counters.RecentIds[bool])
    speaking: counters.RecentIds[str] = msgspec.field(default_factory=counters.RecentIds[str])
    """The message that each agent of the process is writing."""
    totals: counters.Totals = msgspec.field(default_factory=counters.Totals)
    results: int = 0
    model: str = ""
    concluded: bool = False
    waits: bool = False
    """Commands are still running in the background. When they end, the agent continues and prints
    another result (seen with 2.1.330)."""
    aborted: bool = False


class ClaudeMeter(LineMeter[_ClaudeEvent, _ClaudeState]):
    types = (
        "system", "assistant", "message_start", "content_block_delta", "message_delta", "result",
    )  # fmt: skip
    event_type = _ClaudeEvent
    state_type = _ClaudeState

    def __init__(self, *, answers_more: bool = False, resumed: bool = False) -> None:
        """`answers_more`: it reads messages from its stdin, and need not exit when it has answered
        one. `resumed`: it continues a session, whose totals may include what earlier processes
        used."""
        super().__init__()
        self._answers_more, self._resumed = answers_more, resumed

    def _take(self, event: _ClaudeEvent) -> None:
        self.reading.session = event.session_id[:MAX_NAME] or self.reading.session
        if event.type == "assistant" and event.message is not None:
            self._state.aborted = event.aborted
            self._say(event.message, event.parent_tool_use_id or "main")
        elif event.type == "stream_event" and event.event is not None:
            self._stream(event.event, event.parent_tool_use_id or "main")
        elif event.type == "result":
            self._conclude(event)
        elif event.type != "system":
            return
        elif event.subtype == "api_retry":
            counters.failed_call(self.reading, event.error_status, event.error, count=event.attempt)
        elif event.subtype == "background_tasks_changed":
            self._state.waits = bool(event.tasks)
            self._update_finished()
        counters.recognised(self.reading)

    def _say(self, message: _ClaudeMessage, speaker: str) -> None:
        """Count a part of a message; `speaker` is the main agent, or the tool call that started a
        subagent."""
        if message.model == _SYNTHETIC:
            return
        self._state.concluded = False
        self.reading.partial, self.reading.trouble = True, None
        self._update_finished()
        self._state.model = message.model[: 4 * MAX_NAME]
        # `messages` has no longer id in any form
        self._state.speaking.put(speaker, message.id[: MAX_NAME + 1])
        blocks = [block for block in message.content if isinstance(block, _ClaudeBlock)]
        written = sum(counters.size(block.text, block.thinking, block.input) for block in blocks)
        self._charge(message, written)
        for block in blocks:
            if block.type == "tool_use" and self._state.calls.first(block.id, True):
                counters.turn(self.reading, block.name)

    def _charge(self, message: _ClaudeMessage, written: int) -> None:
        used = _tokens(message.usage)
        known = self._state.messages.get(message.id)
        if known is None:
            counters.message(self.reading)
            known = _ClaudeCharge(message.model, used, self._state.results, written)
        elif known.told:
            known = msgspec.structs.replace(
                known, used=msgspec.structs.replace(used, output=known.used.output)
            )
        else:
            used = msgspec.structs.replace(used, output=max(used.output, known.used.output))
            known = msgspec.structs.replace(known, used=used, whole=known.whole + written)
        self._count(message.id, known)

    def _count(self, key: str, charge: _ClaudeCharge) -> None:
        """Replace what a message was counted as, unless a result has counted it for good."""
        before = self._state.messages.get(key)
        if charge.results != self._state.results:
            return
        if not charge.told:
            charge = msgspec.structs.replace(
                charge, used=msgspec.structs.replace(charge.used, output=charge.output)
            )
        model = charge.model
        for sums in (self.reading.models, self.reading.uncovered):
            if before is not None and before.model in sums:
                sums[before.model] = counters.minus(sums[before.model], before.used)
            model = counters.add(sums, charge.model, charge.used)
        guessed = Counter(self.reading.guessed)
        if before is not None:
            guessed[before.model] -= before.guessed
        guessed[model] += charge.guessed
        self.reading.guessed = dict(+guessed)
        self._state.messages.put(key, msgspec.structs.replace(charge, model=model))

    def _stream(self, partial: _ClaudePartial, speaker: str) -> None:
        if partial.type == "message_start" and partial.message is not None:
            self._say(partial.message, speaker)
            return
        key = self._state.speaking.get(speaker)
        known = self._state.messages.get(key) if key else None
        if not key or not known or known.told:
            return
        if partial.type == "content_block_delta" and partial.delta is not None:
            delta = partial.delta
            more = counters.size(delta.text, delta.thinking, delta.partial_json)
            self._count(key, msgspec.structs.replace(known, pieces=known.pieces + more))
        elif partial.type == "message_delta" and partial.usage:
            used = msgspec.structs.replace(known.used, output=_tokens(partial.usage).output)
            self._count(key, msgspec.structs.replace(known, used=used, told=True))

    def _conclude(self, event: _ClaudeEvent) -> None:
        self.reading.failed = (
            _failure(event.result, event.errors, event.subtype) if event.is_error else None
        )
        if event.is_error and event.api_error_status is not None:
            counters.failed_call(self.reading, event.api_error_status, event.result)
        self._state.concluded = not self._answers_more
        self._update_finished()
        models = self._models(event)
        cost = counters.dollars(event.total_cost_usd)
        if self._resumed and models is None:
            cost = None  # it is of the same totals
        if models is not None:
            self._state.totals.restate(self.reading, event.session_id, models)
            self.reading.guessed.clear()
        if models is not None or cost is not None:
            self._state.results += 1
            self.reading.uncovered.clear()
        self.reading.partial = models is None or (
            event.terminal_reason == _ABORTED_CALL and not self._state.aborted
        )
        self._state.totals.restate_cost(self.reading, cost)

    def _update_finished(self) -> None:
        self.reading.finished = self._state.concluded and not self._state.waits

    def _brings_past(self, models: Mapping[str, Tokens]) -> bool:
        """Return whether totals include what an earlier process of the session has used: more input
        than the messages of this one have."""
        own = sum(each.input for each in self.reading.models.values())
        return self._resumed and sum(each.input for each in models.values()) > own

    def _models(self, event: _ClaudeEvent) -> dict[str, Tokens] | None:
        """Return the totals of the process by model, or `None` if the sum of its messages is the
        better guess."""
        models: dict[str, Tokens] = {}
        if event.model_usage:
            for name, usage in event.model_usage.items():
                counters.add(models, _CONTEXT.sub("", name), _tokens(usage))
            return None if self._brings_past(models) else models
        used = _tokens(event.usage)
        if not used.input + used.output:
            return None if self.reading.models else models
        counters.add(models, self._state.model, used)
        return models if counters.weight(models) > counters.weight(self.reading.models) else None


class _ClaudeLine(msgspec.Struct):
    type: str = ""
    timestamp: Any = None
    message: _ClaudeMessage | None = None
    total_cost: Any = msgspec.field(default=None, name="totalCostUSD")


_CONTINUES = {None, "tool_use", "pause_turn"}
"""Stop reasons after which the model is called again, perhaps before the file says so: it is
written 100 ms late."""


def _tells_interruption(message: _ClaudeMessage | None) -> bool:
    blocks = message.content if message is not None else []
    texts = [block.text for block in blocks if isinstance(block, _ClaudeBlock)]
    return any(
        isinstance(text, str) and text.startswith("[Request interrupted by user") for text in texts
    )


class ClaudeSession(SessionMeter[_ClaudeLine]):
    """Lines of one message share its id and its usage. Before it exits, Claude Code writes a
    `cost-state` with the cost of the whole session, subagents included."""

    types = ("assistant", "user", "cost-state")
    event_type = _ClaudeLine
    _resumed = False
    """Lines before `since` were seen: totals of the session are not those of this run."""
    _unanswered = False
    """The model was asked, and no piece of an answer came: the totals omit that call (see
    `_ABORTED_CALL`)."""

    def _take(self, event: _ClaudeLine) -> None:
        if not self._in_time(event.timestamp):
            self._resumed = True
        elif event.type == "cost-state" and not self._resumed:
            self.reading.partial = self._unanswered
            self.reading.cost_usd = counters.dollars(event.total_cost)
        elif (
            event.type == "assistant"
            and event.message is not None
            and event.message.model != _SYNTHETIC
        ):
            self._say(event.message)
        elif event.type == "user":
            interrupted = _tells_interruption(event.message)
            self._unanswered = self._unanswered or not interrupted
            self.reading.broken |= interrupted  # it exits with 0 after Ctrl-C
            self._asked()

    def _say(self, message: _ClaudeMessage) -> None:
        counters.recognised(self.reading)
        self._unanswered = False
        self.reading.partial = message.stop_reason in _CONTINUES
        self.reading.cost_usd = None
        known = self._state.messages.get(message.id)
        used = _tokens(message.usage)
        if known is not None:
            used = msgspec.structs.replace(used, output=max(used.output, known.used.output))
        self._charge(message.id, message.model, used)
        for block in message.content:
            if (
                isinstance(block, _ClaudeBlock)
                and block.type == "tool_use"
                and self._state.calls.first(block.id, True)
            ):
                counters.turn(self.reading, block.name)


class _ClaudeFiles(SessionFiles):
    program = "claude"
    meter = ClaudeSession
    variable = "CLAUDE_CONFIG_DIR"
    resume_words = frozenset({"--resume", "-r", "--continue", "-c"})

    def session_id(self, argv: Sequence[str]) -> str | None:
        resumed = () if "--fork-session" in argv else ("--resume", "-r")
        return first_id(argv, self.program, "--session-id", *resumed)

    def places(self, search: SessionSearch) -> list[SessionPlace]:
        root = search.directory(self.variable, ".claude") + "/projects"
        # Claude Code ends a longer path in a hash that only it can compute
        directory: FileName = (
            re.sub(r"[^a-zA-Z0-9]", "-", search.cwd) if len(search.cwd) <= 200 else ANY_NAME
        )
        if search.session is None:
            return [SessionPlace(root, (directory, re.compile(r"[0-9a-f-]{36}\.jsonl")))]
        subagent = re.compile(r"agent-.*\.jsonl")
        return [
            SessionPlace(root, (directory, f"{search.session}.jsonl")),
            SessionPlace(root, (directory, search.session, "subagents", subagent)),
        ]

    def process_places(self, search: SessionSearch, pid: int) -> list[SessionPlace]:
        root = search.directory(self.variable, ".claude")
        return [SessionPlace(root, ("sessions", f"{pid}.json"))]

    def is_main(self, path: str, session: str) -> bool:
        return path.endswith(f"/{session}.jsonl")

    def said(self, line: dict[str, Any]) -> tuple[Any, Any, Any]:
        return line.get("sessionId"), line.get("cwd"), line.get("timestamp")


_VALUED = frozenset({
    "--agent", "--agents", "--append-system-prompt", "--append-system-prompt-file", "--autocompact",
    "--cloud", "-d", "--debug", "--debug-file", "--effort", "--environment", "--fallback-model",
    "--from-pr", "--input-format", "--json-schema", "--max-budget-usd", "--max-turns", "--model",
    "-n", "--name", "--output-format", "--permission-mode", "--permission-prompts",
    "--permission-prompt-tool", "--plugin-dir", "--plugin-url", "--prompt-suggestions",
    "--remote-control", "--remote-control-session-name-prefix", "-r", "--resume", "--session-id",
    "--setting-sources", "--settings", "--system-prompt", "--system-prompt-file",
    "--system-prompt-snapshot", "--teleport", "-w", "--worktree",
})  # fmt: skip
_LISTED = frozenset({
    "--add-dir", "--allowedTools", "--allowed-tools", "--betas", "--disallowedTools",
    "--disallowed-tools", "--file", "--mcp-config", "--tools",
})  # fmt: skip
"""Options with values (2.1.330)."""
_OF_SESSION = frozenset(
    {
        "-c",
        "--continue",
        "-r",
        "--resume",
        "--session-id",
        "--fork-session",
        "-p",
        "--print",
        "-w",
        "--worktree",
    }
)
"""A worktree is where the session already is."""


_SERVICE = "Claude Code's background service"
_CLOUD = "Anthropic's cloud"
_OWN_SERVER = OwnServer(
    valued=_VALUED,
    listed=_LISTED,
    tasked=frozenset({"-p", "--print"}),
    background=Background(
        frozenset({"--bg", "--background"}),
        ("-p", "--output-format", "stream-json", "--verbose"),
        frozenset({"-p", "--print", "--output-format", "--input-format", "--verbose"}),
        refused_by="CLAUDE_CODE_DISABLE_AGENT_VIEW",
        says="backgrounded · {run}\n"
        "  claude agents\tlist sessions\n"
        "  claude logs {run}\tshow recent output\n"
        "  claude stop {run}\tstop this session",
    ),
    verbs={
        "agents": "list",
        "logs": "logs",
        "attach": "logs",
        "stop": "stop",
        "kill": "stop",
        "rm": "stop",
    },
    outside={
        "daemon": _SERVICE,
        "respawn": _SERVICE,
        "ultrareview": _CLOUD,
        "--cloud": _CLOUD,
        "--remote": _CLOUD,
        "--environment": _CLOUD,
        "--desktop": "Claude Desktop",
        "--tmux": "a tmux server",
    },
    variables={
        "CLAUDE_CODE_DISABLE_AGENT_VIEW": "1",
        # it would write tasks that a later session or the service starts
        "CLAUDE_CODE_DISABLE_CRON": "1",
        # an ended session would leave its shells and agents to the service
        "CLAUDE_CODE_DISABLE_BG_EXIT_HANDOFF": "1",
    },
    sockets=re.compile(r"/.*/cc-daemon-[0-9a-f]+/.*"),
)
"""Seen with 2.1.330."""


class Claude(AgentProgram):
    """`claude`, and what runs it: `npx @anthropic-ai/claude-code`, `node …/claude-code/cli.js`."""

    name = "claude"
    command = (
        "claude", "-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages",
        "--session-id", "{session}", "--model={model}", "--append-system-prompt={instructions}",
        "{options}", "--", "{task}",
    )  # fmt: skip
    introduces_task = frozenset({"-p", "--print"})
    variables = ("CLAUDE_",)
    tells_cost = True
    session_files = _ClaudeFiles()
    own_server = _OWN_SERVER

    def tool_options(self, allowed: Sequence[str], blocked: Sequence[str]) -> list[str]:
        # --tools hides the others from the model, and chooses among the built-in tools only;
        # --allowedTools lets these run without a question
        built_in = ",".join(
            dict.fromkeys(name_of(tool) for tool in allowed if not tool.startswith("mcp__"))
        )
        words = [f"--tools={built_in}", f"--allowedTools={','.join(allowed)}"] if allowed else []
        return words + ([f"--disallowedTools={','.join(blocked)}"] if blocked else [])

    def setup(self, person: Person) -> Setup:
        return setup(person)

    def resumed(
        self, words: Sequence[str], session: str, task: str | None, *, terminal: bool
    ) -> list[str] | None:
        options, others = sorted_words(words, valued=_VALUED, listed=_LISTED, without=_OF_SESSION)
        # its task is one word: an option that is not known here has taken the others
        if len(others) > 1:
            return None
        told = ["--", task] if task is not None else []
        return [*([] if terminal else ["-p"]), *options, "--resume", session, *told]

    def prints_events(self, words: Sequence[str]) -> bool:
        return "stream-json" in values(words, "--output-format")

    def new_meter(self, words: Sequence[str]) -> ClaudeMeter:
        named = {word.partition("=")[0] for word in words}
        return ClaudeMeter(
            answers_more="stream-json" in values(words, "--input-format"),
            resumed=not _ClaudeFiles.resume_words.isdisjoint(named),
        )

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """Yield what an event says to the user. Subagents speak to the main agent, so only their
        tool calls are of interest."""
        main = event.get("parent_tool_use_id") is None
        match event:
            case {"type": "assistant", "message": {"content": [*blocks]} as message} if (
                message.get("model") != _SYNTHETIC
            ):
                for block in blocks:
                    yield from _speech_of(block, main=main)
            case {"type": "stream_event", "event": {"type": "content_block_start"}} if main:
                yield TextBreak()
            case {
                "type": "stream_event",
                "event": {"delta": {"type": "text_delta", "text": str(text)}},
            } if main:
                yield TextDelta(text)
            case {"type": "result", "is_error": True}:
                yield AgentFailure(
                    _failure(event.get("result"), event.get("errors"), event.get("subtype"))
                )
            case {"type": "result", "result": str(text)}:
                yield FinalText(text)


def _speech_of(block: Any, *, main: bool) -> Iterator[Speech]:
    match block:
        case {"type": "text", "text": str(text)} if main:
            yield WholeText(text)
        case {"type": "tool_use", "name": name}:
            yield ToolCall(name, block.get("input"))


def _failure(result: Any, errors: Any, subtype: Any) -> str:
    said = f"it ended with {subtype}" if isinstance(subtype, str) else None
    return counters.words(
        result, "; ".join(map(str, errors)) if isinstance(errors, list) else None, said
    )


PROGRAM = Claude()


# ---- Claude Code (2.1.330): where its calls go
#
# Variables in `env` of its settings win over those of its environment. Of the settings the later
# take precedence: `~/.claude/settings.json` (or that of CLAUDE_CONFIG_DIR), `.claude/settings.json`
# and `.claude/settings.local.json` of the working directory, those that `--settings` names (the
# last, of two), and what an administrator sets in `/etc/claude-code`. A file that is not JSON does
# not count.
#
# So the address is set in the environment where no settings name one, and by `--settings` where
# they do. With other settings, that would send their keys elsewhere: a run in another directory, or
# with another home, is then left as it is. So is one for which a script has chosen another
# provider.
#
# A key, the output of `apiKeyHelper` and a login (CLAUDE_CODE_OAUTH_TOKEN, or of a plan) pass
# through with the call.


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
    "CLAUDE_CODE_USE_ANTHROPIC_AWS": (
        "the Claude Platform on AWS, whose requests are signed for its own host"
    ),
    "CLAUDE_CODE_USE_ANTHROPIC_GOOGLE_CLOUD": (
        "the Claude Platform on Google Cloud, whose logins are for its own host"
    ),
    "CLAUDE_CODE_USE_MANTLE": "Amazon Bedrock (Mantle), whose requests are signed for its own host",
    "CLAUDE_CODE_USE_VERTEX": "Vertex AI, whose logins are for its own host",
}
"""What a variable chooses; of those of providers, the first counts. `None`: an address that the
gateway can ask."""
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


def setup(person: Person) -> Setup:
    """Return how Claude Code is routed through the gateway. Raises `UnreadableError`."""
    found = _found(person)
    chosen = next(
        (name for name in _ELSEWHERE if found.env.get(name, "").lower() not in _OFF), None
    )
    if chosen is not None and (elsewhere := _ELSEWHERE[chosen]) is not None:
        return Setup("claude", direct=f"Claude Code uses {elsewhere} ({chosen})")
    if (why := setups.obstacle(person, found.env)) is not None:
        return Setup("claude", direct=why)
    if found.policies:
        return Setup(
            "claude",
            direct=f"{found.policies[0]} in {_MANAGED} lets Claude Code use no other address",
        )
    routed = _routed(found, foundry=chosen is not None)
    if routed is None:
        return Setup(
            "claude",
            direct=(
                f"Claude Code uses Microsoft Foundry, and neither {_FOUNDRY} nor {_RESOURCE} is set"
            ),
        )
    if managed := routed.variables.keys() & found.managed.keys():
        return Setup(
            "claude", direct=f"{min(managed)} in {_MANAGED} leads Claude Code around the gateway"
        )
    in_files = setups.named_in_files(person._replace(env=found.env))
    if BASE_URL not in found.env and BASE_URL in routed.variables.keys() & in_files:
        # what the program starts has its variables, and would send the key of the file to the
        # gateway
        return Setup(
            "claude", direct=f"a .env file or a profile of Anthropic's SDKs names {BASE_URL}"
        )
    # those of `env` are of any program
    certificates = setups.certificates(person, found.own | found.managed)
    if routed.variables.keys() & found.own.keys():
        setup = _by_settings(routed, person)
    else:
        setup = Setup(
            "claude",
            routed.upstreams,
            env=tuple(routed.variables.items()),
            undone_by=_OTHER_ADDRESS,
        )
    choice = _choice(found, foundry=chosen is not None)
    keys = KEYS["anthropic"] if routed.upstreams else ()
    return replace(setup, only_with=setup.only_with + choice, keys=keys, certificates=certificates)


def _choice(found: ClaudeSettings, *, foundry: bool) -> tuple[tuple[str, str], ...]:
    """Return the variables that choose where calls go, beside the addresses, where no settings have
    them: settings would win."""
    names = (*_ELSEWHERE, _RESOURCE) if foundry else _ELSEWHERE
    return tuple(
        (name, found.env.get(name, ""))
        for name in names
        if name not in found.own and name not in found.managed
    )


def settings_file(options: Sequence[str]) -> str | None:
    """Return the file that `--settings` names; `None` if there is none. Of two options, the last
    counts."""
    pairs = zip(options, (*options[1:], ""), strict=False)
    values = [
        after if word == _SETTINGS else word.partition("=")[2]
        for word, after in pairs
        if word.partition("=")[0] == _SETTINGS
    ]
    return values[-1] if values and values[-1] and not values[-1].lstrip().startswith("{") else None


def choice_in(text: str) -> str | None:
    """Return a variable in settings that chooses where calls go; `None` if there is none. Raises
    `UnreadableError`."""
    names = _variables(json_object(text, "--settings", comments=False))
    return next(
        (name for name in names if name in (*_ELSEWHERE, _RESOURCE) or name.endswith("_BASE_URL")),
        None,
    )


class _Routed(NamedTuple):
    variables: dict[str, str]
    upstreams: tuple[TreeUpstream, ...]


def _routed(found: ClaudeSettings, *, foundry: bool) -> _Routed | None:
    """Return the variables that lead the program, and where its calls go; `None` if that is not
    known."""
    if foundry:
        resource = found.env.get(_RESOURCE)
        url = found.env.get(_FOUNDRY) or (
            f"https://{resource}.services.ai.azure.com/anthropic" if resource else None
        )
        # the program takes only one of them
        variables_ = {_FOUNDRY: f"{GATEWAY}/claude", _RESOURCE: ""}
    elif BASE_URL in found.own:
        url, variables_ = found.env[BASE_URL] or ANTHROPIC, {BASE_URL: f"{GATEWAY}/claude"}
    else:
        return _Routed({BASE_URL: f"{GATEWAY}/anthropic"} | _reached(found), ())
    if url is None:
        return None
    return _Routed(
        variables_ | _reached(found), (TreeUpstream("claude", url.rstrip("/"), "anthropic"),)
    )


def _reached(found: ClaudeSettings) -> dict[str, str]:
    """Return the variables without which the program would look for the gateway behind a proxy,
    where its settings have a word in that."""
    names = {*_PROXIES, *map(str.lower, _PROXIES)}
    if not any(found.env.get(name) for name in names) or (names | _NO_PROXY).isdisjoint(
        found.own | found.managed
    ):
        return {}
    hosts = found.env.get("no_proxy") or found.env.get("NO_PROXY")
    return dict.fromkeys(sorted(_NO_PROXY), f"{hosts},127.0.0.1" if hosts else "127.0.0.1")


def _by_settings(routed: _Routed, person: Person) -> Setup:
    env = person.env
    return Setup(
        "claude",
        routed.upstreams,
        words=("--settings", json.dumps({"env": routed.variables})),
        undone_by=_OTHER_SETTINGS,
        only_with=(
            ("HOME", env.get("HOME", "")),
            ("CLAUDE_CONFIG_DIR", env.get("CLAUDE_CONFIG_DIR", "")),
        ),
        only_in=person.cwd,
    )


def _found(person: Person) -> ClaudeSettings:
    env, read, cwd = person.env, person.read, person.cwd
    directory = env.get("CLAUDE_CONFIG_DIR") or f"{env.get('HOME') or '/'}/.claude"
    files = dict.fromkeys(
        (
            f"{directory}/settings.json",
            f"{cwd}/.claude/settings.json",
            f"{cwd}/.claude/settings.local.json",
        )
    )
    own = _variables(merged(*(json_file(read, path, comments=False) for path in files)))
    administrator = merged(*(json_file(read, path, comments=False) for path in _managed(person)))
    managed, policies = (
        _variables(administrator),
        [name for name in _POLICIES if name in administrator],
    )
    return ClaudeSettings(own, policies, managed, {**env, **own, **managed})


def _managed(person: Person) -> Iterator[str]:
    yield f"{_MANAGED}/managed-settings.json"
    directory = f"{_MANAGED}/managed-settings.d"
    yield from (
        f"{directory}/{name}" for name in sorted(person.names(directory)) if name.endswith(".json")
    )


def _variables(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that settings set."""
    env = at(settings, "env")
    found = env.items() if isinstance(env, dict) else ()
    return {name: str(value) for name, value in found if isinstance(value, str | int | float)}
