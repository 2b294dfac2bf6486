"""The part in a daemon: `sfactl recommend`, and learning while `limits.adaptive` is on."""

from ...core.state.limits import limits_of
from ...core.state.request import Asked, Identity, Shown
from ...daemon.loop.seam import Heart, Part
from ...daemon.server.asker import Asker
from .adviser import Adviser
from .messages import Advice, Recommend, Recommended


def part(heart: Heart) -> Part:
    adviser = Adviser(heart)

    def recommend(asker: Asker, request: Recommend) -> None:
        scope, groups = asker.scope, asker.connection.groups.all
        identity = Identity(name=request.name, run_type=request.run_type)

        def reply(found: list[Advice]) -> Recommended:
            asked = Asked(Shown(()), identity=identity)
            limits = limits_of(asked, None, heart.machine.policy, asker.peer.uid)
            return Recommended(
                id=asker.id,
                runs=max((advice.runs for advice in found), default=0),
                advice=found,
                in_force=[held.limit for held in limits.values()],
            )

        asker.later(lambda: adviser.advise(scope, request.run_type, request.name, groups), reply)

    return Part(
        verbs={Recommend: recommend},
        reconfigure=adviser.reconfigure,
        admitted=adviser.noticed,
        ended=adviser.noticed,
    )
