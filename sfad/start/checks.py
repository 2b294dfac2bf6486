"""What must hold of a request once it is prepared."""

from collections.abc import Sequence

from ..agents import AGENT_PROGRAMS, UNREAD
from ..core.state.access import VERBS
from ..core.state.policy import MAX_LABELS
from ..protocol.errors import bad_request, check_limits, too_many, unavailable
from .prepared import Check, Prepared, Surroundings

MAX_EXEC = 6 << 20
"""Bytes of argv and environment that execve(2) takes at most (3/4 of `_STK_LIM`), with a pointer
and a NUL for each word."""

LARGE = 64 << 10
"""Bytes of argv and environment that are not usual: a login has some 5 KiB.
`quotas.queued_per_user` bounds the usual ones."""

MAX_LARGE = 64 << 20
"""Bytes of all large ones of a user's runs that wait, or may start again: the daemon keeps them in
memory and on its disk."""


def check_size(p: Prepared, around: Surroundings) -> None:
    """Refuse what execve(2) does not take, and a large request of a user whose live runs have
    enough of them."""
    size, peer = p.command.size, around.peer
    if size > MAX_EXEC:
        raise too_many(
            "bytes of argv and environment with 9 more for each word (argument list too long)",
            size,
            MAX_EXEC,
        )
    if size <= LARGE:
        return
    kept = sum(
        other
        for one in around.live.values()
        if one.uid == peer.uid and (other := one.command.size) > LARGE
    )
    if kept + size > MAX_LARGE:
        raise unavailable(
            f"argv and environment have {size} bytes, and {kept} are kept for "
            f"user {peer.user}'s runs that wait; at most {MAX_LARGE} together: "
            "wait until one of them has started, or start it with a smaller environment"
        )


def check_characters(p: Prepared, _: Surroundings) -> None:
    """Refuse NUL in what the kernel takes."""
    command, terms = p.command, p.terms
    for what, words in (("argv", command.argv), ("env", command.env), ("cwd", [command.cwd])):
        if b"\0" in b"".join(words):  # one search for some hundred variables
            word = next(word for word in words if b"\0" in word)
            raise bad_request(f"a NUL byte in {what}: {word[:80]!r}")
    for tool in (*terms.allowed_tools, *terms.blocked_tools):
        if "\0" in tool:
            raise bad_request("a NUL character in the name of a tool")


def check_shown(p: Prepared, _: Surroundings) -> None:
    """Bound texts that lists show, and refuse control characters in them and such as change the
    direction of writing."""
    identity = p.identity
    for what, texts, most in (
        ("a label", (*identity.labels, *identity.labels.values()), 256),
        ("--type", (identity.run_type or "",), 64),
        ("--channel", (identity.channel or "",), 64),
    ):
        for text in texts:
            if len(text) > most:
                raise too_many(f"characters of {what}", len(text), most)
            if not text.isprintable():
                raise bad_request(f"a control character in {what}: {text[:80]!r}")
    for name in identity.claim.names:
        if len(name) > 64:
            raise too_many("characters of a claimed name", len(name), 64)
        if "," in name or "\0" in name:
            raise bad_request("a comma or a NUL character in a claimed name")


def check_bounds(p: Prepared, _: Surroundings) -> None:
    """Bound what else the daemon keeps while it remembers the run. Argv and env are bounded by the
    frame and by execve(2)."""
    tools = (*p.terms.allowed_tools, *p.terms.blocked_tools)
    for what, value, most in (
        ("bytes of cwd", len(p.command.cwd), 4096),
        ("characters of session", len(p.command.agent_session or ""), 64),
        ("labels", len(p.identity.labels), MAX_LABELS),
        ("names in the claimed chain", len(p.identity.claim.names), 64),
        ("characters of patterns of models", sum(map(len, p.terms.allowed_models)), 4096),
        (
            "characters of tool names, with 1 more for each",
            sum(map(len, tools)) + len(tools),
            65536,
        ),
    ):
        if value > most:  # no call for each: all are right in nearly every request
            raise too_many(what, value, most)


def check_values(p: Prepared, _: Surroundings) -> None:
    """Refuse values that mean nothing. The core checks those that it decides by."""
    if not p.command.cwd.startswith(b"/"):
        raise bad_request(f"cwd must be absolute, got {p.command.cwd!r}")
    check_limits(p.terms.limits)
    unknown = (p.terms.allow | p.terms.deny) - VERBS
    if unknown:
        known = ", ".join(sorted(VERBS))
        raise bad_request(
            f"unknown verb to allow or deny: {', '.join(sorted(unknown))}; choose from: {known}"
        )


def check_meter(p: Prepared, _: Surroundings) -> None:
    meter = p.output.meter
    if meter is None or meter in UNREAD:
        return
    known = [program.name for program in AGENT_PROGRAMS]
    if meter not in known:
        names = ", ".join([*known, *UNREAD])
        raise bad_request(f"unknown meter '{meter[:80]}'; choose from: {names}")
    if not p.output.kept:
        raise bad_request(
            f"the meter '{meter}' has nothing to read: this run's output is not kept in files"
        )


CHECKS: Sequence[Check] = (
    check_size, check_characters, check_bounds, check_shown, check_values, check_meter,
)  # fmt: skip
"""In the order in which they are made. Those of features follow."""
