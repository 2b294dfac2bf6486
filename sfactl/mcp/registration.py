"""How each agent program is told of the server: what a person registers, and what one run is given.

Found with Claude Code 2.1.330, Codex 0.169, Gemini CLI 0.61 and opencode 1.18.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from sfad.protocol.known import METERED_PROGRAMS as KNOWN
from sfad.protocol.paths import make_private, xdg
from sfad.protocol.requests.starting import AgentList, Agents, Spawn

from ..connecting.connection import Client
from ..exits import UsageError
from ..whole_file import write_whole
from . import codex_hooks
from .approving import SERVER as APPROVALS
from .approving import TOOL as PERMISSION

SERVER = "sfad"
ANSWER_WITHIN = 120
"""Seconds that a registered server takes for an answer at most: `sessions.sync_timeout_seconds`."""
APPROVAL_SECONDS = 7 * 86400
"""For which a program waits for a person."""
TOOL_SECONDS = 150
"""Seconds that the program is told to wait for it."""


def server_command(socket: str | None, *options: str) -> list[str]:
    """Return the command of the server, the same from any directory."""
    place = [] if socket is None else ["--socket", os.path.abspath(socket)]
    return [*_sfactl(), "mcp", *place, "--answer-within", f"{ANSWER_WITHIN}s", *options]


def _sfactl() -> list[str]:
    own = sys.argv[0]
    if os.path.basename(own) == "sfactl":
        return [os.path.abspath(own)]
    return [sys.executable, "-P", "-m", "sfactl"]


def explained(program: str, socket: str | None) -> str:
    """Return what to run or to write to register the server with a program. Raise `UsageError`."""
    command = server_command(socket)
    match program:
        case "claude":
            entry = _json({"type": "stdio"} | _entry(command))
            return (
                "# Claude Code: "
                f"run\nclaude mcp add-json --scope user {SERVER} {shlex.quote(entry)}\n"
            )
        case "codex":
            lines = (f"{key} = {_json(value)}" for key, value in _codex(command).items())
            return "\n".join(
                ["# Codex: add to ~/.codex/config.toml", f"[mcp_servers.{SERVER}]", *lines, ""]
            )
        case "opencode":
            return (
                "# opencode: "
                f"add to ~/.config/opencode/opencode.json\n{_json(_opencode(command), indent=2)}\n"
            )
    if (known := KNOWN.get(program)) is not None and known.mcp_settings is not None:
        return (
            f"# {known.title}: add to {known.mcp_settings}\n{_json(_servers(command), indent=2)}\n"
        )
    raise UsageError(
        f"--print-config: unknown program {program!r}; choose from: {', '.join(KNOWN)}"
    )


def with_server(spawn: Spawn, client: Client) -> Spawn:
    """Return the request with the server added to its program, for this run only. Raise
    `UsageError` for another program."""
    at, program, _ = _program(spawn, client)
    socket = os.fspath(client.path)
    # Without the terminal, the program has no person to ask, in the foreground too.
    command = server_command(socket, *([] if spawn.stdio == "inherit" else ["--no-ask"]))
    options, variables = _added(program, command, _given(spawn))
    kept = [entry for entry in spawn.env if os.fsdecode(entry.partition(b"=")[0]) not in variables]
    return replace(
        spawn,
        argv=[*spawn.argv[:at], *map(os.fsencode, options), *spawn.argv[at:]],
        env=[*kept, *(os.fsencode(f"{name}={value}") for name, value in variables.items())],
    )


def with_approvals(spawn: Spawn, client: Client) -> Spawn:
    """Return the request with a program that asks a person, over the daemon, for what it would ask
    about at its terminal. Raise `UsageError` for a program that cannot."""
    at, program, words = _program(spawn, client)
    socket = os.fspath(client.path)
    match program:
        case "":
            return spawn
        case "claude":
            command = [*_sfactl(), "mcp", "--socket", socket, "--approvals"]
            entry = {"command": command[0], "args": command[1:], "timeout": APPROVAL_SECONDS * 1000}
            options = [
                f"--mcp-config={_json({'mcpServers': {APPROVALS: entry}})}",
                f"--permission-prompt-tool=mcp__{APPROVALS}__{PERMISSION}",
            ]
        case "codex":
            hook, options = _codex_hook([*_sfactl(), "ask", "--socket", socket])
            if not codex_hooks.trusts(words, options, hook, _given(spawn), os.fsdecode(spawn.cwd)):
                raise UsageError(
                    f"--approvals: {shlex.join(words)} does not say that it trusts the hook by "
                    "which sfactl asks a person, as Codex 0.169 does; a model of it would answer"
                )
            given = spawn.argv if spawn.agent is None else []
            subcommand = next((n for n, w in enumerate(given) if w in (b"exec", b"e")), None)
            if subcommand is not None or spawn.agent is not None:
                at = at if subcommand is None else subcommand + 1
                options.append("--approve-for-me")
        case _:
            raise UsageError(
                f"--approvals: {program} has no way to ask for them; it works with claude and codex"
            )
    return replace(spawn, argv=[*spawn.argv[:at], *map(os.fsencode, options), *spawn.argv[at:]])


def _codex_hook(command: Sequence[str]) -> tuple[str, list[str]]:
    """Return a hook, and the options with which Codex (0.169) asks it for each call that needs an
    approval.

    `codex exec` asks for nothing, but with `--approve-for-me`: then a model answers, unless a hook
    does before it. A hook needs the trust of a person, for which Codex keeps its hash: it is given
    for this one alone, because `--dangerously-bypass-hook-trust` would trust those of a project as
    well. A command that fails denies."""
    failed = "{ echo 'sfactl ask has failed, so no person has answered' >&2; exit 2; }"
    handler: dict[str, Any] = {
        "type": "command",
        "command": f"{shlex.join(command)} || {failed}",
        "timeout": APPROVAL_SECONDS,
    }
    identity = {"event_name": "permission_request", "hooks": [handler | {"async": False}]}
    trusted = sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()
    fields = ", ".join(f"{key} = {_json(value)}" for key, value in handler.items())
    place = _json("/<session-flags>/config.toml:permission_request:0:0")
    return handler["command"], [
        "-c",
        f"hooks.PermissionRequest=[{{hooks = [{{{fields}}}]}}]",
        "-c",
        f'hooks.state={{{place} = {{trusted_hash = "sha256:{trusted}"}}}}',
    ]


def _given(spawn: Spawn) -> dict[str, str]:
    """Return the variables of the run."""
    pairs = (entry.partition(b"=") for entry in spawn.env)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _program(spawn: Spawn, client: Client) -> tuple[int, str, Sequence[str]]:
    """Return where options go in the words of the command, the program, and the words that start
    it."""
    if spawn.agent is not None:
        agents = {agent.name: agent for agent in client.call(Agents(id=0), AgentList).agents}
        if spawn.agent not in agents:
            return 0, "", ()  # the daemon refuses the run, and says what agents there are
        # The task is the first word or the last: options go to the other end.
        at = (
            len(spawn.argv)
            if spawn.argv and not spawn.argv[0].startswith(b"-") and b"--" not in spawn.argv
            else 0
        )
        command = agents[spawn.agent].command
        last, program = _checked(command)
        return at, program, command[: last + 1]
    words = [os.fsdecode(word) for word in spawn.argv]
    last, program = _checked(words)
    return last + 1, program, words[: last + 1]


def _checked(words: Sequence[str]) -> tuple[int, str]:
    """Return the position of the program, which a launcher like npx may precede, and its name."""
    packages = {package: name for name in KNOWN for package in (name, *KNOWN[name].packages)}
    for at, word in enumerate(words[:3]):
        if (name := packages.get(os.path.basename(word).split("@")[0])) is not None:
            return at, name
    found = os.path.basename(words[0]) if words else ""
    raise UsageError(
        f"--mcp: there is no way to give {found!r} an MCP server for one run; "
        f"it works with {', '.join(KNOWN)}"
    )


def _added(
    program: str, command: Sequence[str], given: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the options and the variables with which the program finds the server."""
    match program:
        case "codex":
            settings = _codex(command) | {
                "required": True,
                "default_tools_approval_mode": "approve",
            }
            pairs = (
                f"mcp_servers.{SERVER}.{key}={_json(value)}" for key, value in settings.items()
            )
            return [word for pair in pairs for word in ("-c", pair)], {}
        case "gemini":
            return [], _gemini_variables(_gemini_file(command, given), given)
        case "opencode":
            own = _object(given.get(_OPENCODE_CONFIG, "{}"), _OPENCODE_CONFIG)
            merged = own | {"mcp": own.get("mcp", {}) | _opencode(command)["mcp"]}
            return [], {_OPENCODE_CONFIG: _json(merged)}
    if not program:
        return [], {}
    servers = _json(_servers(command))
    return [
        option.replace("{name}", SERVER).replace("{servers}", servers)
        for option in KNOWN[program].mcp_options
    ], {}


def _entry(command: Sequence[str]) -> dict[str, Any]:
    return {"command": command[0], "args": list(command[1:]), "timeout": TOOL_SECONDS * 1000}


def _servers(command: Sequence[str]) -> dict[str, Any]:
    """Return the object that most programs have in their settings."""
    return {"mcpServers": {SERVER: _entry(command)}}


def _codex(command: Sequence[str]) -> dict[str, Any]:
    return {"command": command[0], "args": list(command[1:]), "tool_timeout_sec": TOOL_SECONDS}


def _json(value: Any, indent: int = 0) -> str:
    """Return JSON; without `indent` on one line. TOML has the same texts, numbers and lists."""
    return msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()


def _opencode(command: Sequence[str]) -> dict[str, Any]:
    return {
        "mcp": {
            SERVER: {
                "type": "local",
                "command": list(command),
                "enabled": True,
                "timeout": TOOL_SECONDS * 1000,
            }
        }
    }


_OPENCODE_CONFIG = "OPENCODE_CONFIG_CONTENT"
_GEMINI_DEFAULTS = "GEMINI_CLI_SYSTEM_DEFAULTS_PATH"


def _gemini_file(command: Sequence[str], given: Mapping[str, str]) -> Path:
    """Return a file of defaults, below the user's own settings: those of the system, and the
    server. Its name is of its content, so that runs at the same time do not disturb each other."""
    system = Path(given.get(_GEMINI_DEFAULTS) or "/etc/gemini-cli/system-defaults.json")
    try:
        own = _object(system.read_text(), str(system))
    except FileNotFoundError:
        own = {}
    server = _entry(command) | {"trust": True}
    text = _json(own | {"mcpServers": own.get("mcpServers", {}) | {SERVER: server}})
    directory = xdg(os.environ, "XDG_CACHE_HOME", ".cache") / "sfad"
    make_private(directory)
    path = directory / f"gemini-{sha256(text.encode()).hexdigest()[:12]}.json"
    write_whole(path, text.encode())
    return path


_COUNTS = """\
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
const { existsSync } = fs;
fs.existsSync = (path) => path !== FILE && existsSync(path);
syncBuiltinESMExports();
"""
"""Since 0.60, Gemini CLI takes no such file that another user than root may change. It looks at the
path that it has normalized, and only if that exists; it reads the path that the variable names."""


def _gemini_variables(file: Path, given: Mapping[str, str]) -> dict[str, str]:
    module = f"--import=data:text/javascript,{quote(_COUNTS.replace('FILE', _json(str(file))))}"
    options = " ".join(filter(None, (given.get("NODE_OPTIONS"), module)))
    return {_GEMINI_DEFAULTS: f"{file.parent}//{file.name}", "NODE_OPTIONS": options}


def _object(text: str, source: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageError(f"--mcp: {source} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"--mcp: {source} is not a JSON object")
    return found
