"""Gives runs the profile of agent programs when one starts in them.

A night is often `sh night.sh`, and that may run `sh part.sh` as a child run. Their commands are no agent programs, so they have the
defaults, which would end them in the middle of their work. Only limits that come from the defaults are raised: not those that a
person, the entry of an agent or a type has set.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from ..protocol.known import CODING_AGENT, PROFILES
from ..protocol.types import Status
from . import commands as c
from .context import Context
from .limit_enforcement import LimitEnforcement
from .limits import PROFILED, ActiveLimit, is_default, is_from_above, narrow, profile_limits, step
from .naming import AGENT_PROGRAMS
from .run import Run
from .vocabulary import EventType


@dataclass(frozen=True, slots=True)
class Widening:
    _ctx: Context
    _limit_enforcement: LimitEnforcement

    def agent_started(self, run: Run, program: str, at: float) -> bool:
        """Raise the limits of the run and of those above it, because an agent program starts in it. Return whether that changed
        any."""
        if program not in AGENT_PROGRAMS or not self._ctx.policy.program_profile:
            return False
        # from the root down, because the limits of a run are never above those of its parent
        widened = [each for each in run.lineage if self._widen(each, program, at)]
        return bool(widened)

    def _widen(self, run: Run, program: str, at: float) -> bool:
        if not _untouched(run):
            return False
        found = profile_limits(f"profile {CODING_AGENT}", PROFILES[CODING_AGENT], self._ctx.policy)
        if run.parent is not None:
            narrow(found, run.parent)
        raised = [found[kind] for kind in PROFILED if _is_higher(run.limits.get(kind), found[kind].threshold)]
        if not raised:
            return False
        steps = ", ".join(step(run.limits[limit.kind], limit) for limit in raised)
        for limit in raised:
            # what `--on-limit` says holds for the profile, too
            run.limits[limit.kind] = ActiveLimit(replace(limit, action=run.limits[limit.kind].action))
        self._ctx.changed(run)
        self._ctx.used_more(run)  # its row shows its limits
        self._ctx.do(c.Rebound(run))
        why = f"'{program}' starts in it, so it has the profile {CODING_AGENT}"
        self._ctx.publish(EventType.LIMITS_WIDENED, run, f"{why}: {steps}; to set limits yourself: --timeout, --limit")
        self._limit_enforcement.limits_changed(run, {limit.kind for limit in raised}, at)
        return True


def _untouched(run: Run) -> bool:
    """Return whether no one has set the limits that a profile sets, and none of them holds or ends the run already."""
    if run.status is Status.STOPPING or run.breach is not None or any(limit.kind in PROFILED for limit in run.asked.limits):
        return False
    return all(is_default(found.limit) or is_from_above(found.limit) for kind in PROFILED if (found := run.limits.get(kind)))


def _is_higher(active: ActiveLimit | None, threshold: float) -> bool:
    return active is not None and threshold > active.limit.threshold
