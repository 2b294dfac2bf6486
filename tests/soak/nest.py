"""An agent that starts others, and waits for them: `python -m tests.soak.nest DEPTH SEED DIARY`."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from random import Random

from sfactl.connecting.connection import Client, DaemonError, Unreachable
from sfad.protocol import messages as m
from tests.crash.victim import Agents

from .agents import ROOT, argument, environment


def say(diary: str, what: str, figure: int) -> None:
    """Write to the diary as the shell scripts do."""
    line = f"{what} nested {os.environ['SFA_RUN_ID']} {os.environ['SFA_ATTEMPT']} {figure}\n"
    with open(diary, "a") as file:
        file.write(line)


def main() -> int:
    """Start agents, and return the exit code: 0 however they ended, 4 without a daemon."""
    depth, seed, diary = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    say(diary, "begin", os.getpid())
    code = 0
    try:
        start(Random(seed), depth, diary)
    except Unreachable:
        code = 4
    say(diary, "end", code)
    return code


def start(random: Random, depth: int, diary: str) -> None:
    """Start random agents, one after another, and wait for most of them."""
    agents = Agents(Path(diary).parent)
    with Client(Path(os.environ["SFA_SOCKET"])) as client:
        for _ in range(random.randint(1, 3)):
            argv, options = argument(random, agents, depth)
            request = m.Spawn(
                id=client.next_id(),
                argv=[os.fsencode(word) for word in argv],
                cwd=os.fsencode(ROOT),
                env=environment(),
                key=secrets.token_hex(8),
                **options,
            )
            try:
                reply = client.call(request, m.Reply)
                if isinstance(reply, m.RunReply) and random.random() < 0.7:
                    client.call(
                        m.Wait(id=client.next_id(), run=reply.run.id, timeout=20), m.RunReply
                    )
            except DaemonError:
                continue


if __name__ == "__main__":
    sys.exit(main())
