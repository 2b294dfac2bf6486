"""The state of a run as release 0.1.0 saved it, in one flat record: an upgrade adopts runs that are alive."""

from dataclasses import dataclass

from ..core.account import Account
from ..core.ladder import Ladder
from ..core.limits import Limits
from ..core.run import Attempt, Clock, Ending, LimitHold, Paused, ProcessExit, State
from ..protocol.types import ApiTrouble, LimitKind, Reason, Status


@dataclass(frozen=True, slots=True)
class FlatState:
    status: Status
    limits: Limits
    committed: bool
    admitted: int
    attempt: int
    retry_at: float
    pid: int | None
    exit: ProcessExit | None
    clock: Clock
    started_at: float | None
    ended_at: float | None
    frozen: bool
    frozen_until: float | None
    stop: Ladder | None
    clearing: bool
    account: Account
    held_by: LimitKind | None
    held_reason: Reason | None
    held_until: float | None
    tools_said: set[str]
    said_finished: bool
    said_failed: str | None
    outcome: Status | None
    reason: Reason | None
    tied_to: int | None
    admit_token: int | None
    pause_tokens: list[int]
    max_time: float
    out_of_money: Reason | None = None
    by_hand: bool = False
    suspended: bool = False
    api_trouble: ApiTrouble | None = None

    @property
    def state(self) -> State:
        attempt = Attempt(self.attempt, self.pid, self.exit, self.said_finished, self.said_failed, self.api_trouble)
        paused = Paused(self.frozen_until, self.suspended, self.out_of_money, self.by_hand)
        return State(
            **{name: getattr(self, name) for name in _SAME},
            latest=attempt,
            paused=paused if self.frozen else None,
            breach=LimitHold(self.held_by, self.held_reason, self.held_until) if self.held_by and self.held_reason else None,
            retry_at=self.retry_at if self.status is Status.RETRYING and not self.clearing else None,
            ladder=self.stop if not self.status.terminal else None,
            ending=Ending(self.outcome, self.reason) if self.outcome is not None else None,
        )


_SAME = State.__dataclass_fields__.keys() & FlatState.__dataclass_fields__.keys() - {"retry_at"}
"""Fields that have kept name and meaning."""
