"""What of a request the core decides about."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ..agents import named, session_files_of
from ..agents.program import digest
from ..agents.setup_reader import TreeSetups
from ..core.state.naming import AGENT_COMMANDS, derive_name, program_name
from ..core.state.request import Asked, Shown, Sources
from ..protocol.known import ANY_PROGRAM, BY_REPORT
from ..protocol.requests.windows import Provider
from ..usage.metering import program_of
from .prepared import Prepared, Surroundings


def fill_in_asked(p: Prepared, around: Surroundings) -> None:
    """Fill in what the core decides about, and which of the run's files tell what it uses."""
    order = around.order
    meter, parts = p.output.meter, p.parts
    argv = tuple(map(shown, p.command.argv))
    derived = derive_name(argv)
    p.program = program_of(meter, argv, kept=p.output.kept)
    p.session_files = session_files_of(meter, argv)
    # something beside the gateway tells what it uses
    metered = p.program is not None or p.session_files is not None or meter == BY_REPORT
    name = p.identity.name
    if name is None:
        # derived from the whole command: a hash of its beginning would be the same for several
        # agents; the node of a placed run fills its agent in
        name = order.agent if order.placing is not None and order.agent else derived
    p.asked = Asked(
        Shown(abridged(argv), shown(p.command.cwd), **_placeholders(p)),
        replace(
            p.identity,
            name=name,
            unnamed=order.automatic and p.identity.name is None,
        ),
        p.terms,
        p.queueing,
        p.retries,
        Sources(
            agent_program=derived in AGENT_COMMANDS,
            tells_each_call=meter == ANY_PROGRAM,
            reports=meter == BY_REPORT,
            gated=bool(parts.gateway) and parts.direct is None,
            metered=metered,
            uncounted=_uncounted(p, argv, metered=metered),
            direct=parts.direct,
            logins=_logins(p.command.env, around.setups),
        ),
        tied_to=around.connection if order.tied else None,
        takes_input=p.output.stdin == "pipe",
        inherits=p.output.stdio == "inherit",
        session=around.session,
        continues=order.continues.run if order.continues is not None else None,
        placing=order.placing,
        grant=order.grant,
        in_program=order.admit is not None,
        prints_in=None if around.printed_as_text and p.program is not None else around.prints_in,
        stages=p.stages,
    )


_LOGINS: Mapping[bytes, Provider] = {
    b"ANTHROPIC_API_KEY": "anthropic",
    b"ANTHROPIC_AUTH_TOKEN": "anthropic",
    b"CLAUDE_CODE_OAUTH_TOKEN": "anthropic",
    b"CODEX_API_KEY": "openai",
}
"""Variables with a credential that programs prefer to their login."""
_LOGIN_VARIABLES = tuple(name + b"=" for name in _LOGINS)


def _logins(env: Sequence[bytes], setups: TreeSetups) -> dict[str, str]:
    """Return hashes of the credentials in an environment, and of Codex's login, by provider: they
    tell whose windows a run will use, or that it will use none."""
    codex = setups.of("codex").account
    found: dict[str, str] = {"openai": codex} if codex else {}
    together = b"".join(env)  # a few searches instead of one for each of some hundred variables
    for item in env if any(name in together for name in _LOGINS) else ():
        if item.startswith(_LOGIN_VARIABLES):
            name, _, value = item.partition(b"=")
            if value:
                found[_LOGINS[name]] = digest(value.decode("latin-1"))
    return found


def _uncounted(p: Prepared, argv: Sequence[str], *, metered: bool) -> str | None:
    """Return why nothing will tell what a run uses, or not in time for a limit; `None` if something
    will. What goes around the gateway may tell too late, unless a person has named its meter."""
    if metered:
        program = named(program_name(argv)) if p.parts.direct and not p.output.meter else None
        if program is None or program.tells_in_time:
            return None
    if p.parts.gateway:
        return p.parts.direct
    return "it does not use the gateway, and no meter knows its program"


def _placeholders(p: Prepared) -> dict[str, str]:
    """Return what is shown of a registered agent's placeholders."""
    given = dict(p.command.placeholders)
    if p.task is not None:
        given["task"] = p.task
    names = ("task", "model", "provider") if given else ()
    return {name: _cut(given[name], MAX_SHOWN) for name in names if name in given}


MAX_SHOWN = 4096
"""Characters of a command line, or of a task, that are kept for display. It may have megabytes, and
a thousand runs are in memory."""


def abridged(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command line as it is displayed, cut with `…`."""
    kept: list[str] = []
    room = MAX_SHOWN
    for word in argv:
        kept.append(_cut(word, room))
        if len(word) > room:
            break
        room -= len(word) + 1
    return tuple(kept)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"


def shown(raw: bytes) -> str:
    """Return an operating-system string as text. Bytes that are not UTF-8 appear as `\\xNN`."""
    return raw.decode(errors="backslashreplace")
