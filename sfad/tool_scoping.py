"""Which tools an agent program may use, in its own options. What it has no option for, its meter and the gateway tell.

Tried with Claude Code 2.1.330, Codex 0.169, Gemini CLI 0.61 and opencode 1.18.
"""

import json
from collections.abc import Sequence

from .core.tool_lists import name_of

_CODEX = {"command_execution": "features.shell_tool=false", "web_search": 'web_search="disabled"'}
"""By the name that a tool has in Codex's events: the setting that takes it away. Other tools have none."""


def tool_options(program: str, allowed: Sequence[str], blocked: Sequence[str]) -> list[bytes]:
    """Return the options that hold a program to these tools. Each is one word, so that no word after it belongs to it."""
    words: list[str] = []
    if program == "claude":
        # --tools hides the others from the model; --allowedTools lets these run without a question
        words += [f"--tools={_names(allowed)}", f"--allowedTools={','.join(allowed)}"] if allowed else []
        words += [f"--disallowedTools={','.join(blocked)}"] if blocked else []
    elif program == "codex":
        for tool, setting in _CODEX.items():
            if tool in blocked or (allowed and tool not in allowed):
                words += [f"--config={setting}"]
    elif program == "gemini":
        # lets these run without a question; without a terminal, Gemini CLI refuses others that would need one
        words += [f"--allowed-tools={','.join(allowed)}"] if allowed else []
    return [word.encode() for word in words]


def tool_variables(program: str, allowed: Sequence[str], blocked: Sequence[str]) -> dict[str, str]:
    """Return the variables that hold a program to these tools."""
    if program != "opencode" or not (allowed or blocked):
        return {}
    # the last rule that matches a tool counts
    rules = {"*": "deny"} if allowed else {}
    rules |= dict.fromkeys((name_of(tool) for tool in allowed), "allow")
    rules |= dict.fromkeys((name_of(tool) for tool in blocked), "deny")
    return {"OPENCODE_PERMISSION": json.dumps(rules)}


def _names(tools: Sequence[str]) -> str:
    # --tools chooses among the built-in tools only
    return ",".join(dict.fromkeys(name_of(tool) for tool in tools if not tool.startswith("mcp__")))
