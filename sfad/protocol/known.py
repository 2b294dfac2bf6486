"""Agent programs, meters and profiles of limits that are built in."""

from __future__ import annotations

from .structs import Struct
from .types import Action


class KnownProgram(Struct, frozen=True):
    """What the core, the config and clients know of an agent program."""

    packages: tuple[str, ...] = ()
    """Names of packages that contain the program: `npx @google/gemini-cli` runs `gemini`."""
    interrupted: bool = False
    """A stop sends SIGINT to its main process alone before it signals the whole run."""
    retries_silently: bool = False
    """Its events do not tell that a call of the model failed and is tried again."""
    serves: str | None = None
    """The subcommand with which it starts its own background processes."""


METERED: dict[str, KnownProgram] = {
    # Claude Code prints its totals within 0.2 s of SIGINT. After SIGTERM to all its processes its tool dies first, and it may make
    # one more call to report that.
    "claude": KnownProgram(("claude-code",), interrupted=True),
    # in a terminal without `-c`, Codex starts `codex app-server` and its updater from CODEX_HOME/packages, each in its own session
    "codex": KnownProgram(serves="app-server"),
    "gemini": KnownProgram(("gemini-cli",), retries_silently=True),
    "opencode": KnownProgram(("opencode-ai",), retries_silently=True),
}
"""Agent programs whose events a meter reads: `sfad.agents` has a module of the same name for each."""

PROGRAMS: dict[str, KnownProgram] = METERED | {
    "aider": KnownProgram(("aider-chat",)),
    **dict.fromkeys(("goose", "cursor-agent", "copilot", "amp", "qwen", "crush", "droid", "auggie"), KnownProgram()),
}

AGENTS = ("claude", "codex", "gemini", "opencode", "aider")
"""Built-in agents (`sfad.agents.KNOWN_PROGRAMS`)."""

BASE_URLS = {
    "ANTHROPIC_BASE_URL": "anthropic",
    "OPENAI_BASE_URL": "openai",
    "GOOGLE_GEMINI_BASE_URL": "gemini",
}
"""The variables in which agent programs look for their model, and the upstream of the gateway that each means."""

KEYS = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "openai": ("OPENAI_API_KEY", "CODEX_API_KEY"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"),
}
"""The variables in which agent programs look for their key, by upstream. Each program starts with the first."""

TOKENS = {"claude": {"anthropic": "ANTHROPIC_AUTH_TOKEN"}}
"""By program: the variable to set instead. In a terminal Claude Code asks whether to use a new ANTHROPIC_API_KEY (2.1.330)."""

ANY_PROGRAM = "jsonl"
"""The meter of any program that prints usage as lines of JSON."""

NO_METER = "none"

BY_REPORT = "report"
"""The value of `--meter` for an agent that reports what it uses (`sfactl report`, `sfactl.client`). Its output is not read."""

METERS = (*METERED, ANY_PROGRAM, BY_REPORT, NO_METER)

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
