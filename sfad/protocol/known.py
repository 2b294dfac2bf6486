"""Agent programs, meters and profiles of limits that are built in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from .types import Action


class KnownProgram(Struct, frozen=True):
    """What the core, the config and clients know of an agent program. Its file in `sfad.agents` has
    what the daemon alone knows."""

    title: str = ""
    """What its makers call it. Empty: sfad knows its name alone, and has no file of it."""
    metered: bool = False
    """A meter reads its events."""
    packages: tuple[str, ...] = ()
    """Names of packages that contain the program: `npx @google/gemini-cli` runs `gemini`."""
    files: tuple[str, ...] = ()
    """Where it keeps login, settings and sessions, below the home directory. It can write its own,
    and sees no other program's."""
    files_variable: str | None = None
    """Where a user says that they are, with an absolute path."""
    interrupted: bool = False
    """A stop sends SIGINT to its main process alone before it signals the whole run."""
    retries_silently: bool = False
    """Its events do not tell that a call of the model failed and is tried again."""
    contains: tuple[str, ...] = ()
    """Other programs that its file is, where it is executed by their names."""
    helps: str | None = None
    """How the first option begins with which it executes itself as a helper of its own."""
    serves: str | None = None
    """The subcommand with which it starts its own background processes."""
    addresses: tuple[str, ...] = ()
    """Variables that lead its calls to the gateway. Without any, only its command does."""
    keys: tuple[str, ...] = ()
    """Variables to set for its key, each instead of the first of its provider in `KEYS`."""
    mcp_options: tuple[str, ...] = ()
    """Options that give it an MCP server for one run; `{servers}` stands for the object of JSON,
    `{name}` for the server's name."""
    mcp_settings: str | None = None
    """The file of JSON in which a person registers one."""


KNOWN_PROGRAMS: dict[str, KnownProgram] = {
    "claude": KnownProgram(
        "Claude Code",
        metered=True,
        packages=("claude-code",),
        files=(".claude", ".claude.json"),
        files_variable="CLAUDE_CONFIG_DIR",
        # it prints its totals within 0.2 s of SIGINT. After SIGTERM to all its processes its tool
        # dies first, and it may make one more call to report that
        interrupted=True,
        contains=("rg", "ugrep", "bfs"),
        serves="daemon",
        addresses=("ANTHROPIC_BASE_URL", "ANTHROPIC_FOUNDRY_BASE_URL"),
        # in a terminal it asks whether to use a new ANTHROPIC_API_KEY (2.1.330)
        keys=("ANTHROPIC_AUTH_TOKEN",),
        # with "=", because both options would take the words that follow them
        mcp_options=("--mcp-config={servers}", "--allowedTools=mcp__{name}"),
    ),
    "codex": KnownProgram(
        "Codex",
        metered=True,
        files=(".codex",),
        files_variable="CODEX_HOME",
        # in a terminal without `-c` it starts `codex app-server` and its updater from
        # CODEX_HOME/packages, each in its own session
        # links to itself that it gives its shell tool, and its sandbox
        contains=("apply_patch", "applypatch", "codex-linux-sandbox", "codex-execve-wrapper"),
        # so it starts each command of its shell tool (0.169)
        helps="--codex-run-as-",
        serves="app-server",
    ),
    "gemini": KnownProgram(
        "Gemini CLI",
        metered=True,
        packages=("gemini-cli",),
        files=(".gemini",),
        retries_silently=True,
        # the second one where it leads the calls: then the program starts itself without the first
        addresses=("GOOGLE_GEMINI_BASE_URL", "NODE_OPTIONS"),
        mcp_settings="~/.gemini/settings.json",
    ),
    "opencode": KnownProgram(
        "opencode",
        metered=True,
        packages=("opencode-ai",),
        files=(
            ".config/opencode",
            ".local/share/opencode",
            ".local/state/opencode",
            ".cache/opencode",
        ),
        addresses=("OPENCODE_CONFIG_CONTENT",),
        retries_silently=True,
    ),
    "qwen": KnownProgram(
        "Qwen Code",
        metered=True,
        packages=("qwen-code",),
        files=(".qwen",),
        files_variable="QWEN_HOME",
        addresses=("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"),
        retries_silently=True,
        mcp_options=("--mcp-config={servers}", "--allowed-tools=mcp__{name}"),
        mcp_settings="~/.qwen/settings.json",
    ),
    "copilot": KnownProgram(
        "Copilot CLI",
        metered=True,
        files=(".copilot", ".cache/copilot"),
        files_variable="COPILOT_HOME",
        addresses=("COPILOT_PROVIDER_BASE_URL",),
        mcp_options=("--additional-mcp-config={servers}", "--allow-tool={name}"),
        mcp_settings="~/.copilot/mcp-config.json",
    ),
    "aider": KnownProgram("aider", packages=("aider-chat",), files=(".aider",)),
    **dict.fromkeys(("goose", "cursor-agent", "amp", "crush", "droid", "auggie"), KnownProgram()),
}
"""Agent programs. `sfad.agents` has a module of the same name for each that has a title;
docs/metering.md says how to add one."""

METERED_PROGRAMS = {name: program for name, program in KNOWN_PROGRAMS.items() if program.metered}
"""Agent programs whose events a meter reads."""

AGENTS = tuple(name for name, program in KNOWN_PROGRAMS.items() if program.title)
"""Built-in agents: programs that can be started by their names."""

KEYS = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "openai": ("OPENAI_API_KEY", "CODEX_API_KEY"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"),
}
"""The variables in which agent programs look for their key, by upstream. Each program starts with
the first, or with its own of `KnownProgram.keys`."""

WINDOW_HOSTS = {
    "anthropic": ("api.anthropic.com",),
    "openai": ("chatgpt.com", "api.openai.com"),
}
"""Where the providers themselves tell of windows."""

LENGTHS = {"5h": 5 * 3600.0, "7d": 7 * 86400.0, "primary": 5 * 3600.0, "secondary": 7 * 86400.0}
"""Seconds of such windows, where a provider does not tell them."""


def provider_of(api: str) -> Literal["anthropic", "openai"] | None:
    """Return whose windows pay for calls in this format."""
    if api == "anthropic":
        return "anthropic"
    return "openai" if api.startswith("openai") else None


def is_helper(words: Sequence[str], program: str) -> bool:
    """Return whether a command that executes the file of an agent program makes it a helper of the
    program, or another program that it contains."""
    known = KNOWN_PROGRAMS.get(program)
    if known is None or not words:
        return False
    first = words[1] if len(words) > 1 else ""
    return words[0].rpartition("/")[2] in known.contains or (
        known.helps is not None and first.startswith(known.helps)
    )


ANY_PROGRAM = "jsonl"
"""The meter of any program that prints usage as lines of JSON."""

NO_METER = "none"

BY_REPORT = "report"
"""The value of `--meter` for an agent that reports what it uses (`sfactl report`, `sfactl.client`).
Its output is not read."""

TIME_SAID = "SFA_DEFAULTS_TIMEOUT"
"""The variable with the default of `--timeout`. A run reads in it how much time it has."""

METERS = (*METERED_PROGRAMS, ANY_PROGRAM, BY_REPORT, NO_METER)

CODING_AGENT = "coding-agent"
"""The profile of a run of a known agent program that names no profile."""


class Profile(Struct, frozen=True):
    """The limits of a `--type`, in the units of their kinds, and the action of each."""

    turns: int
    time: float
    cost: float
    action: Action


PROFILES: dict[str, Profile] = {
    "developer": Profile(25, 600, 1.00, Action.TERMINATE),
    "qa": Profile(10, 120, 0.50, Action.TERMINATE),
    "planner": Profile(15, 300, 2.00, Action.TERMINATE),
    "architect": Profile(50, 1800, 5.00, Action.WARN),
    "researcher": Profile(50, 1200, 5.00, Action.WARN),
    "security-architect": Profile(30, 900, 3.00, Action.TERMINATE),
    "code-reviewer": Profile(20, 600, 1.50, Action.WARN),
    "devops": Profile(30, 900, 2.00, Action.TERMINATE),
    CODING_AGENT: Profile(100, 1800, 5.00, Action.TERMINATE),
}
"""Documented in docs/limits.md. Any other word is a type without a profile."""


# ---- Stand-ins for agent programs

STAND_IN = b"# sfad shim of "
"""The second line of a stand-in begins so, whatever its name, and wherever it was copied or linked
to."""

HOW_TO_ASK = "to have it ask: sfactl shim install {0}, or start it with sfactl run"
"""About a program that was started without asking."""


def is_named_so(path: str, program: str) -> bool:
    """Return whether a file stands in for a program, by the directory that it is in."""
    return path.endswith(f"/shims/{program}")
