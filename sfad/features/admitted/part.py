"""The part in a daemon: it decides which program carries a run out, and answers that."""

from msgspec.structs import replace

from ...daemon.loop.seam import Heart, Part
from ...daemon.server.asker import Asker
from ...processes import kernel
from ...protocol.errors import bad_request, unavailable, wrong_state
from ...protocol.messages import Done
from ...protocol.texts.sanitise import clean
from ...protocol.types import LimitKind
from ...start.prepared import Prepared, Surroundings
from .feature import ADMIT
from .messages import AgentLocated, EndAgent, LocateAgent, NarrowAgent
from .narrowing import Narrowing
from .programs import Programs

MAX_WORDS = 1000
"""Characters of the reason of a failure."""
_BY_PROCESS = (LimitKind.MEMORY, LimitKind.PIDS, LimitKind.CPU, LimitKind.OUTPUT)


def part(heart: Heart) -> Part:
    programs, narrowing = heart.parts().carrier(), Narrowing(heart.machine, heart.requests)
    assert isinstance(programs, Programs)
    own = programs.own

    def end(asker: Asker, request: EndAgent) -> None:
        live = heart.catalogue.live.get(request.run)
        if live is not None or not heart.catalogue.over(request.run):
            live = own(asker, request.run)
            if not live.run.attempt:
                raise wrong_state(f"run {request.run} has not begun: stop it")
            failed = None
            if request.failed is not None:
                failed = clean(request.failed[:MAX_WORDS].encode(errors="replace"))
            programs.end(live, failed)
        asker.reply(Done(id=asker.id))

    async def locate(asker: Asker, request: LocateAgent) -> None:
        live = own(asker, request.run)
        url: str | None = None
        if live.parts.gateway:
            leading = heart.parts().leading()
            await asker.aside()
            if (trouble := await leading.ready(live.uid)) is not None:
                raise unavailable(f"the gateway cannot be started: {trouble}")
            if not asker.still_wanted():
                return
            url = leading.address(live.uid, live.run.id)
        asker.reply(AgentLocated(id=asker.id, url=url))

    def narrow(asker: Asker, request: NarrowAgent) -> None:
        narrowing.ask(asker, own(asker, request.run), request.limits)

    return Part(
        verbs={EndAgent: end, LocateAgent: locate, NarrowAgent: narrow},
        decide=_decide,
        check=_check,
        ended=lambda run: narrowing.forget(run.id),
    )


def _decide(p: Prepared, around: Surroundings) -> None:
    if around.order.admit is None:
        return
    process = kernel.stat(around.client)
    if process is None:
        raise unavailable(f"process {around.client} ended before it could be looked at")
    decided = replace(around.order.admit, pid=around.client, started=process.started)
    p.parts.decide(ADMIT, decided)


def _check(p: Prepared, around: Surroundings) -> None:
    order = around.order
    if order.admit is None:
        return
    for what, asked in (
        ("further attempts", p.retries.attempts > 1),
        ("a terminal, stdin or output", order.stdio != "files" or order.stdin != "null"),
        ("output that is kept", order.log),
        ("a worktree", order.worktree is not None),
        ("a sandbox", order.isolation is not None),
        ("a node of the fleet", order.placing is not None or order.grant is not None),
        ("a session that it continues", order.continues is not None),
        ("the command of a registered agent", order.agent is not None),
    ):
        if asked:
            raise bad_request(
                f"an agent within a program cannot have {what}: start that as a run below it"
            )
    of_process = [each.kind.value for each in p.terms.limits if each.kind in _BY_PROCESS]
    if of_process:
        raise bad_request(
            f"an agent within a program has no process of its own, so {', '.join(of_process)} "
            "cannot be limited: limit the run that its program is in, or those below it"
        )
