"""The one way from what was asked to what is started: steps and checks, from top to bottom
(`daemon.loop.starting` has their list). A step that has to wait returns what is awaited. Until the
first one does, all is done in one go, in the order in which the requests came.
"""

from collections.abc import Awaitable, Callable, Sequence

from .asking import asked_of
from .prepared import Prepared
from .surroundings import Surroundings

Step = Callable[[Prepared, Surroundings], Awaitable[None] | None]
Check = Callable[[Prepared, Surroundings], None]


async def prepare(
    around: Surroundings, steps: Sequence[Step], checks: Sequence[Check], last: Step
) -> Prepared:
    """Return what is decided about a request, once all that its run may not start without is there.
    `last`: what waits for that; then the checks are made again. Raise `Invalid`, `RequestError`,
    `OSError`."""
    p = Prepared.of(around.order)
    for step in steps:
        if (waits := step(p, around)) is not None:
            await waits
    for check in checks:
        check(p, around)
    p.asked, p.program = asked_of(
        p,
        around.order,
        connection=around.connection,
        session=around.session,
        setups=around.setups,
        prints_in=around.prints_in,
        printed_as_text=around.printed_as_text,
    )
    if (waits := last(p, around)) is not None:
        await waits
        for check in checks:
            check(p, around)
    return p
