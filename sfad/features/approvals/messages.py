"""The requests of an agent program that asks for a call of a tool, and of the person who
answers."""

from __future__ import annotations

from typing import Literal

from ...protocol.requests.base import Reply, Request


class AskApproval(Request, tag="ask_approval"):
    """Ask a person whether the agent of a run may call a tool, and wait for the answer for at most
    20 s; ask again with the same key while it is `pending`. What is not asked again for 90 s is
    dropped. It needs the permission for `report`. Answered by `ApprovalAnswer`."""

    repeats = 1

    key: str
    """What the agent program calls the call; unique in its run."""
    tool: str
    arguments: str = "{}"
    """JSON; people are shown at most 4 096 characters."""
    cwd: str = ""
    run: str | None = None
    """`None`: the one that the peer is in."""


class ApprovalAnswer(Reply, tag="approval_answer"):
    state: Literal["pending", "allowed", "denied"]
    message: str = ""
    """What the agent is told of a denial."""


class AnswerApproval(Request, tag="answer_approval"):
    """Allow or deny a call that a run asks for. Only outside any run. Answered by `Done`;
    `wrong_state` if there is no such call."""

    run: str
    call: str
    """`Approval.call`."""
    allow: bool
    message: str = ""
    """For the agent, where it is denied; at most 1 000 characters."""
