"""Gives a root the profile of agent programs when the first one starts in it.

A night is often `sh night.sh`. Its command is no agent program, so it has the defaults, which would end it in the middle of its
work. Only limits that come from the defaults are raised: not those that a person, the entry of an agent or a type has set.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from ..protocol.known import CODING_AGENT, PROFILES
from ..protocol.types import Status
from . import commands as c
from .context import Context
from .limit_enforcement import LimitEnforcement
from .limits import PROFILED, ActiveLimit, is_default, profile_limits, step
from .naming import AGENT_PROGRAMS
from .run import Run
from .vocabulary import EventType


@dataclass(frozen=True, slots=True)
class Widening:
    _ctx: Context
    _limit_enforcement: LimitEnforcement

    def agent_started(self, root: Run, program: str, at: float) -> bool:
        """Raise the root's limits, because an agent program starts in its tree. Return whether that changed any."""
        if program not in AGENT_PROGRAMS or not self._ctx.policy.program_profile or not _untouched(root):
            return False
        found = profile_limits(f"profile {CODING_AGENT}", PROFILES[CODING_AGENT], self._ctx.policy)
        raised = [limit for kind, limit in found.items() if _is_higher(root.limits.get(kind), limit.threshold)]
        if not raised:
            return False
        steps = ", ".join(step(root.limits[limit.kind], limit) for limit in raised)
        for limit in raised:
            # what `--on-limit` says holds for the profile, too
            root.limits[limit.kind] = ActiveLimit(replace(limit, action=root.limits[limit.kind].action))
        self._ctx.changed(root)
        self._ctx.used_more(root)  # its row shows its limits
        self._ctx.do(c.Rebound(root))
        why = f"'{program}' starts in it, so it has the profile {CODING_AGENT}"
        self._ctx.publish(EventType.LIMITS_WIDENED, root, f"{why}: {steps}; to set limits yourself: --timeout, --limit")
        self._limit_enforcement.limits_changed(root, {limit.kind for limit in raised}, at)
        return True


def _untouched(root: Run) -> bool:
    """Return whether no one has set the limits that a profile sets, and none of them holds or ends the run already."""
    if root.status is Status.STOPPING or root.breach is not None:
        return False
    return all(is_default(root.limits[kind].limit) for kind in PROFILED if kind in root.limits)


def _is_higher(active: ActiveLimit | None, threshold: float) -> bool:
    return active is not None and threshold > active.limit.threshold
