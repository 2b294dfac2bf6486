"""The verbs and their lines in the help, which need no import of their modules: all together would
take 0.2 s.

Each is a function in the module of `commands/` that is named like it. A package there is a group of
verbs of two words: `session list` is in `commands/session/list.py`. A test compares the lines with
the functions. A verb whose module has been deleted is not listed. A verb whose module has no line
here, such as that of a new feature, is listed under `More`.
"""

import os
from collections.abc import Iterable, Sequence

ALIASES = {"ps": "list"}

_COMMANDS = os.path.join(os.path.dirname(__file__), "commands")
_FILES = {name.removesuffix(".py") for name in os.listdir(_COMMANDS) if name.endswith(".py")}

_LINES = {
    "Start": {
        "run": "Start a run in the foreground, with its output and exit code",
        "spawn": "Start a run and print its id",
        "continue": "Continue the session of an ended agent in a new run",
        "rerun": "Start runs again, with the command and the options that they had",
        "session": "Delegate work to other agents: start, watch and stop sessions",
        "agents": "List the registered agents, or explain one",
    },
    "Look": {
        "list": "List runs (alias: ps)",
        "tree": "Show runs as a tree",
        "top": "Show runs full-screen, as they change",
        "web": "Show runs in a browser: look, steer and plot, also from a telephone",
        "info": "Show everything that is known of runs, with live processes and memory",
        "why": "Say why runs ended, were refused or wait, or what limits them",
        "logs": "Print the output of runs, or follow it",
        "result": "Print the final answer of ended runs",
        "summary": (
            "Summarise what waits for you, how runs ended, what they cost and why some failed"
        ),
        "events": "Print events, and follow them",
        "wait": "Wait for runs to end",
    },
    "Steer": {
        "stop": "Stop runs and everything below them, to the last process",
        "pause": "Pause runs and everything below them: freeze processes and stop clocks",
        "resume": "Resume paused runs, with a new limit if a limit paused them",
        "limit": "Change the limits of live runs, up or down",
        "approve": (
            "Approve the increase that a run waits for, and let the run continue; or a call of a "
            "tool"
        ),
        "deny": "Deny the increase that a run waits for, and stop the run; or a call of a tool",
        "attach": "Show the terminal of a run, and type into it",
        "send": "Write to the stdin of a run started with --stdin, or type into its terminal",
    },
    "Bring home": {
        "diff": "Show what a run has changed in its git worktree since its start",
        "land": "Bring the work of ended runs to your branch",
        "fetch": "Bring back what a run has changed in the files that were sent with it",
    },
    "Money": {
        "calls": "Print the model calls that runs have made through the gateway, or follow them",
        "plans": (
            "Show the windows of subscriptions: "
            "how much is used, when they reset, and which runs wait for that"
        ),
        "recommend": "Suggest limits from past successful runs",
        "report": (
            "Report what a run has used: turns, messages, tokens, cost; or that it waits for a "
            "person"
        ),
        "reserve": "Reserve what a call to a model may use, before the call",
        "settle": "Replace a reservation with what was used",
    },
    "Set up": {
        "status": "Show the daemon: where it is, how it contains runs, and how many there are",
        "doctor": "Check what sfad needs of this machine, and say how to fix it",
        "demo": "Watch the daemon refuse, limit and stop runs (15 seconds, leaves nothing)",
        "completion": "Print the completion script of a shell",
        "config": "Show the daemon's settings and where each comes from, or the schema of --limits",
        "fleet": "Nodes of the fleet",
        "help": "Show the verbs, or explain one",
        "hooks": "Show the hooks of the config, and try one",
        "ask": "Ask a person whether an agent may call a tool: a hook of its program",
        "mcp": "Offer subagents to an agent program, as an MCP server on stdin and stdout",
        "metrics": "Print the daemon's metrics in the text format of Prometheus",
        "otel": (
            "Export a span for each ended run and each of its model calls to "
            "`otel.endpoint`, until interrupted"
        ),
        "prune": "Remove ended runs, with their output",
        "reload": "Make the daemon read its config again, as SIGHUP does, and show what changed",
        "shim": "Have agent programs that a run starts by itself become child runs",
    },
}
_MEMBERS = {
    "session": {
        "delegate": "Start a session, wait for it, and print its answer",
        "info": "Show a session, and its answer if it has ended; with --wait, wait for that",
        "list": "List the live sessions, and those that ended last",
        "log": (
            "Print the transcript of a session: "
            "its events and output, made safe for a language model"
        ),
        "send": "Write a line to the stdin of a session, or continue one that has ended",
        "spawn": "Start a session in the background and print its id",
        "stop": "Stop sessions and everything below them, to the last process",
    },
    "fleet": {
        "drain": "Place no more runs on a node",
        "forget": "Give up the runs of this node on another one that will not come back",
        "nodes": "List the nodes of the fleet, and what each lacks that is not ready",
        "status": "Show this node's place in the fleet",
    },
    "hooks": {
        "list": (
            "List the hooks of the config, how often each was started and failed, "
            "and commands of --on-end that are not done"
        ),
        "try": (
            "Execute a hook for an invented event, and print how it ended, its output and its time"
        ),
    },
}
_MEANT = {
    "kill": "stop", "cancel": "stop", "terminate": "stop", "start": "run", "exec": "run",
    "log": "logs", "tail": "logs", "show": "info", "inspect": "info",
    "describe": "info", "ls": "list", "rm": "prune", "delete": "prune", "clean": "prune",
    "cost": "summary", "usage": "summary", "explain": "why", "freeze": "pause", "suspend": "pause",
    "restart": "rerun", "retry": "rerun", "again": "rerun", "merge": "land",
    "apply": "land",
}  # fmt: skip
"""Words of other tools, and the verbs that do the same."""


def _is_there(verb: str) -> bool:
    module = os.path.join(_COMMANDS, verb)
    return verb in _FILES or any(map(os.path.exists, (f"{module}.py", f"{module}/__init__.py")))


def _more(names: Iterable[str]) -> dict[str, str]:
    """Return verbs that have no line: the first sentence of what their functions say."""
    import ast  # no verb of sfad's own needs it

    found = {}
    for name in sorted(names):
        with open(os.path.join(_COMMANDS, f"{name}.py"), "rb") as file:
            text = file.read()
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError):
            found[name] = ""  # who names this verb is told what is wrong
            continue
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name.rstrip("_") == name:
                said = ast.get_docstring(node) or ""
                found[name] = " ".join(said.partition("\n\n")[0].split()).removesuffix(".")
    return found


def _headings() -> dict[str, dict[str, str]]:
    listed = {
        heading: {name: line for name, line in lines.items() if _is_there(name)}
        for heading, lines in _LINES.items()
    }
    more = _FILES.difference({"__init__"}, *_LINES.values())
    return listed | ({"More": _more(more)} if more else {})


HEADINGS = _headings()
"""The verbs of one word and the groups, by the heading of the help, in its order."""
MEMBERS = {
    group: {name: line for name, line in lines.items() if _is_there(os.path.join(group, name))}
    for group, lines in _MEMBERS.items()
    if _is_there(group)
}
"""The verbs of each group, which have two words."""
_TOP = {name: summary for listed in HEADINGS.values() for name, summary in listed.items()}
SUMMARIES = {
    f"{name} {member}".strip(): summary
    for name, line in _TOP.items()
    for member, summary in [("", line), *MEMBERS.get(name, {}).items()]
}
"""The lines in the help of all verbs, of one word and of two, and of the groups."""


def known(group: str | None = None) -> dict[str, str]:
    """Return the verbs that may follow `sfactl`, or the name of a group, with their lines in the
    help."""
    return MEMBERS[group] if group else _TOP


def everything() -> list[str]:
    """Return every verb, also those of two words."""
    return [verb for verb in SUMMARIES if verb not in MEMBERS]


def suggestion(verb: str) -> str:
    """Return the end of the error about an unknown verb: the verb that was probably meant, if there
    is one."""
    group, _, word = verb.rpartition(" ")
    if group not in MEMBERS:
        group, word = "", verb
    there = [*known(group)]
    meant = _MEANT[word] if _MEANT.get(word) in there else closest(word, there)
    return f". Did you mean '{f'{group} {meant}'.strip()}'?" if meant is not None else ""


def closest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that was probably meant."""
    # Imported here because it takes 5 ms, and few command lines are wrong.
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, known, 1)), None)
