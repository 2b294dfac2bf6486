"""`recommend`: suggest limits from past successful runs."""

from ...core.asked import Asked
from ...core.limits import limits_of
from ...protocol import messages as m
from ...protocol.statistics import Advice
from ..call import Call, answers


@answers(m.Recommend)
def recommend(call: Call, request: m.Recommend) -> None:
    scope, asked = call.scope, Asked(argv=(), name=request.name, type=request.run_type)

    def reply(found: list[Advice]) -> m.Reply:
        in_force = [held.limit for held in limits_of(asked, None, call.runtime.machine.policy, call.peer.uid).values()]
        runs = max((advice.runs for advice in found), default=0)
        return m.Recommended(id=call.id, runs=runs, advice=found, in_force=in_force)

    asker = call.connection.groups.all
    call.later(lambda: call.runtime.adviser.advise(scope, request.run_type, request.name, asker), reply)
