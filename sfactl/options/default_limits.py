"""The limits of a run without options, for `run --help` and `spawn --help`: those of the running
daemon, else those in the config that a daemon started now would read."""

import subprocess
import sys
from collections.abc import Mapping

from msgspec import json

from sfad.protocol.kinds import DEFAULT_KEYS, KINDS
from sfad.protocol.known import CODING_AGENT, PROFILES, Profile
from sfad.protocol.limits import format_amount
from sfad.protocol.requests.daemon import Config, ConfigReply, Setting
from sfad.protocol.types import LimitKind

from ..connecting.bounded import bounded
from ..connecting.connection import connect
from ..exits import Quit
from .completion import Late

ADVICE_SECONDS = 1.0
"""Seconds to wait for the daemon's answer."""
SHOWN = [kind for kind in KINDS if kind.value in Profile.__struct_fields__]
"""The kinds that the help shows: those that a profile sets."""


def paragraph() -> str:
    """Return the defaults in force, as a paragraph of a help text."""
    try:
        found = _settings()
    except Quit as error:
        return f"Default limits: unknown. {error.message}"
    values = {setting.key: setting.value for setting in found}
    defaults = {
        kind: value
        for kind in SHOWN
        if (value := values[f"defaults.{DEFAULT_KEYS[kind]}"]) is not None
    }
    most = {kind: values[f"limits.{KINDS[kind].most}"] for kind in SHOWN}
    lines = [f"any command            {_amounts(defaults)}"]
    if values["defaults.program_profile"] != "off":
        profile = {
            kind: min(getattr(PROFILES[CODING_AGENT], kind.value), most[kind]) for kind in SHOWN
        }
        lines.append(f"claude, codex, …       {_amounts(profile)} (profile coding-agent)")
    lines.append(
        f"at most                {_amounts(most)} (limits.max_time, .max_turns, .max_cost)"
    )
    wanted = {f"defaults.{DEFAULT_KEYS[kind]}" for kind in SHOWN} | {
        f"limits.{KINDS[kind].most}" for kind in SHOWN
    }
    told = (setting for setting in found if setting.key in wanted and setting.source != "built-in")
    lines += [f"{setting.key:<22} set in {setting.source}" for setting in told]
    return "\b\nDefault limits:\n" + "\n".join(f"  {line}" for line in lines)


def _settings() -> list[Setting]:
    try:
        with bounded(ADVICE_SECONDS, Late()), connect(None, tell=False) as client:
            return client.call(Config(id=0), ConfigReply).settings
    except (Quit, Late):
        pass  # the help must work if no daemon is running
    command = [sys.executable, "-P", "-X", "utf8", "-m", "sfad.config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Quit(done.returncode, done.stderr.strip())
    return [Setting(**each) for each in json.decode(done.stdout)]


def _amounts(limits: Mapping[LimitKind, float]) -> str:
    turns = {LimitKind.TURNS: " turns"}
    return ", ".join(
        format_amount(kind, threshold) + turns.get(kind, "") for kind, threshold in limits.items()
    )
