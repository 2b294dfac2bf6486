"""The real command-line agents: where they come from, and how each is started against the scripted
model."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.real_agents.script import ANTHROPIC, GEMINI, OPENAI, Price
from tests.surroundings import fetched, person


@dataclass(frozen=True)
class Cli:
    """A command-line agent from npm."""

    name: str
    package: str
    version: str
    """The version that the tests need."""
    price: Price
    argv: tuple[str, ...]
    """Starts it without a terminal and without questions, and makes it print events; contains the
    prompt."""
    as_text: tuple[str, ...]
    """The same, but it prints text."""
    in_terminal: tuple[str, ...]
    """The same in a terminal, where it does not end by itself."""
    options: tuple[str, ...]
    """For the built-in entry of its name."""
    tells_early: bool
    """Whether its events tell a call before it has ended, and tokens before the end."""

    @property
    def by_name(self) -> tuple[str, ...]:
        """Return the command of the built-in agent of this name, with a task."""
        return (self.name, "go", *self.options)

    def turns_seen(self, calls: int) -> int:
        """How many of so many calls its events have told of, at the least, while the last is still
        going on."""
        return calls if self.tells_early else calls - 1


CLAUDE = Cli(
    "claude",
    "@anthropic-ai/claude-code",
    person.get("SFAD_CLAUDE_VERSION", "2.1.330"),
    ANTHROPIC,
    (
        "claude",
        "-p",
        "go",
        "--output-format",
        "stream-json",
        "--verbose",
        "--dangerously-skip-permissions",
    ),
    ("claude", "-p", "go", "--dangerously-skip-permissions"),
    ("claude", "--dangerously-skip-permissions", "go"),
    ("--dangerously-skip-permissions",),
    tells_early=True,
)
CODEX = Cli(
    "codex",
    "@openai/codex",
    person.get("SFAD_CODEX_VERSION", "0.169.0"),
    OPENAI,
    (
        "codex",
        "exec",
        "--json",
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
        "go",
    ),
    ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "go"),
    ("codex", "--dangerously-bypass-approvals-and-sandbox", "go"),
    ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    tells_early=False,
)
GEMINI_CLI = Cli(
    "gemini",
    "@google/gemini-cli",
    person.get("SFAD_GEMINI_VERSION", "0.61.0"),
    GEMINI,
    ("gemini", "-p", "go", "--output-format", "stream-json", "--yolo", "-m", "gemini-2.5-pro"),
    ("gemini", "-p", "go", "--yolo", "-m", "gemini-2.5-pro"),
    ("gemini", "-i", "go", "--yolo", "-m", "gemini-2.5-pro"),
    ("--yolo", "-m", "gemini-2.5-pro"),
    tells_early=False,
)
OPENCODE = Cli(
    "opencode",
    "opencode-ai",
    person.get("SFAD_OPENCODE_VERSION", "1.18.33"),
    ANTHROPIC,
    ("opencode", "run", "go", "--format", "json", "--model", "anthropic/claude-sonnet-4-5"),
    ("opencode", "run", "go", "--model", "anthropic/claude-sonnet-4-5"),
    ("opencode", "--prompt", "go", "--model", "anthropic/claude-sonnet-4-5"),
    ("--model", "anthropic/claude-sonnet-4-5"),
    tells_early=False,
)
QWEN = Cli(
    "qwen",
    "@qwen-code/qwen-code",
    person.get("SFAD_QWEN_VERSION", "0.15.10"),
    OPENAI,
    ("qwen", "-p", "go", "--output-format", "stream-json", "--yolo", "-m", "qwen3-coder-plus"),
    ("qwen", "-p", "go", "--yolo", "-m", "qwen3-coder-plus"),
    ("qwen", "-i", "go", "--yolo", "-m", "qwen3-coder-plus"),
    ("--yolo", "-m", "qwen3-coder-plus"),
    tells_early=True,
)
COPILOT = Cli(
    "copilot",
    "@github/copilot",
    person.get("SFAD_COPILOT_VERSION", "1.0.102"),
    OPENAI,
    ("copilot", "-p", "go", "--output-format", "json", "--yolo", "--model", "gpt-5.1"),
    ("copilot", "-p", "go", "--yolo", "--model", "gpt-5.1"),
    ("copilot", "-i", "go", "--yolo", "--model", "gpt-5.1"),
    ("--yolo", "--model", "gpt-5.1"),
    tells_early=True,
)
CLIS = {cli.name: cli for cli in (CLAUDE, CODEX, GEMINI_CLI, OPENCODE, QWEN, COPILOT)}


def packages() -> Path:
    """Return the directory of npm's packages."""
    return fetched()[0]


def install() -> Path:
    """Let npm fetch the missing packages. Return the directory of the commands."""
    assert shutil.which("npm"), "the agents come from npm, and there is none on the PATH"
    packages().mkdir(parents=True, exist_ok=True)
    commands = packages() / "node_modules" / ".bin"
    with (packages() / "lock").open("w") as lock:  # another session may want the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(_works(commands, cli) for cli in CLIS.values()):
            _fetch()
    for cli in CLIS.values():
        assert _works(commands, cli), (
            f"{cli.package}@{cli.version} was installed and {commands / cli.name} does not say so"
        )
    return commands


def _works(commands: Path, cli: Cli) -> bool:
    """Ask the package: five programs that print their versions take 12 s of CPU."""
    manifest = commands.parent / cli.package / "package.json"
    return (commands / cli.name).exists() and json.loads(manifest.read_text())[
        "version"
    ] == cli.version


def _fetch() -> None:
    wanted = [f"{cli.package}@{cli.version}" for cli in CLIS.values()]
    subprocess.run(
        ["npm", "install", "--prefix", packages(), "--no-fund", "--no-audit", *wanted],
        env=person,
        check=True,
        timeout=1800,
    )


def environment(home: Path, url: str) -> dict[str, str]:
    """Configure the agents in a home directory so that they call the model at the URL and no other
    host."""
    (home / ".codex").mkdir(parents=True)
    (home / "tmp").mkdir()
    (home / ".codex" / "config.toml").write_text(_CODEX_CONFIG.format(url=url))
    (home / ".gemini").mkdir()
    (home / ".gemini" / "settings.json").write_text(_GEMINI_SETTINGS)
    (home / ".qwen").mkdir()
    (home / ".qwen" / "settings.json").write_text(_QWEN_SETTINGS)
    (home / ".copilot").mkdir()
    (home / ".copilot" / "config.json").write_text(
        json.dumps({"trusted_folders": [str(home)], "banner": "never"})
    )
    _unpack_copilot(home / ".cache" / "copilot")
    (home / ".claude.json").write_text(
        json.dumps(_CLAUDE_STATE | {"projects": {str(home): _TRUSTED}})
    )
    return {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "CLAUDE_CODE_TMPDIR": str(home / "tmp"),
        "IS_SANDBOX": "1",  # root may skip permissions only where it says so
        "ANTHROPIC_BASE_URL": f"{url}/claude",
        "ANTHROPIC_API_KEY": "scripted",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CODEX_HOME": str(home / ".codex"),
        "GOOGLE_GEMINI_BASE_URL": f"{url}/gemini",
        "GEMINI_API_KEY": "scripted",
        "OPENAI_BASE_URL": f"{url}/qwen/v1",
        "OPENAI_API_KEY": "scripted",
        "COPILOT_PROVIDER_BASE_URL": f"{url}/copilot/v1",
        "COPILOT_PROVIDER_API_KEY": "scripted",
        "COPILOT_OFFLINE": "true",
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "OPENCODE_CONFIG_CONTENT": json.dumps(_opencode_config(url)),
        "OPENCODE_PURE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        # opencode has npm fetch its plug-ins' interface, and goes on without
        "npm_config_registry": url,
        "npm_config_fetch_retries": "0",
    }


def _unpack_copilot(cache: Path) -> None:
    """Put there what Copilot CLI would unpack in each home directory first: 190 MB, in some 10 s of
    CPU."""
    once = packages() / "copilot-cache"
    with (packages() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not once.exists():
            with tempfile.TemporaryDirectory(dir=packages()) as home:
                command = packages() / "node_modules" / ".bin" / "copilot"
                env = {"HOME": home, "PATH": os.environ["PATH"], "COPILOT_OFFLINE": "true"}
                subprocess.run(
                    [command, "--no-auto-update", "--version"],
                    env=env,
                    check=True,
                    stdout=subprocess.DEVNULL,
                    timeout=300,
                )
                Path(home, ".cache", "copilot").rename(once)
    shutil.copytree(once, cache, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


_CLAUDE_STATE = {
    "hasCompletedOnboarding": True,
    "theme": "dark",
    "bypassPermissionsModeAccepted": True,
    "customApiKeyResponses": {"approved": ["scripted"], "rejected": []},
}
"""Settings by which the program asks nothing in a terminal."""
_TRUSTED = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}

_GEMINI_SETTINGS = """\
{"privacy": {"usageStatisticsEnabled": false}, "general": {"enableAutoUpdate": false},
 "telemetry": {"enabled": false}, "security": {"auth": {"selectedType": "gemini-api-key"}}}
"""
_QWEN_SETTINGS = """\
{"privacy": {"usageStatisticsEnabled": false}, "general": {"enableAutoUpdate": false},
 "telemetry": {"enabled": false}, "security": {"auth": {"selectedType": "openai"}}}
"""


def _opencode_config(url: str) -> dict[str, object]:
    provider = {"anthropic": {"options": {"baseURL": f"{url}/opencode/v1"}}}
    return {"autoupdate": False, "share": "disabled", "permission": "allow", "provider": provider}


_CODEX_CONFIG = """\
model_provider = "scripted"
allow_login_shell = false  # a login shell sets a PATH of its own, without sfactl
check_for_update_on_startup = false

[model_providers.scripted]
name = "scripted"
base_url = "{url}/codex/v1"
wire_api = "responses"

[analytics]
enabled = false

[features]
plugins = false  # else it asks for a catalogue of them on the net
"""
