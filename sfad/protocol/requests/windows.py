"""The windows of subscriptions."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from ..types import RunId
from .base import Reply, Request

Provider = Literal["anthropic", "openai"]


class ListSubscriptions(Request, tag="plans"):
    """Return the accounts whose windows are known. Answered by `SubscriptionList`."""

    repeats = 1


class WindowInfo(Struct, frozen=True, kw_only=True):
    """One window of an account, as it was heard of last."""

    window: str
    """`5h`, `7d`, one of a model such as `7d_opus`; `primary`, `secondary`."""
    used_ratio: float | None
    """0.42 is 42 %. `None` if it is unknown, as after its reset."""
    resets_at: datetime | None
    heard_at: datetime
    keep_ratio: float
    """What is kept of it for the person: `plans.keep`, or `plans.keep_week`."""
    rejected: bool = False
    """The provider has refused a call because of it, and it has not been reset since."""
    empty_at: datetime | None = None
    """When it will be used up at the present rate; `None` if that is after its reset, or cannot be
    told."""


class SubscriptionInfo(Struct, frozen=True, kw_only=True):
    account: str
    """A hash of the organization, or of the credential, and the user."""
    provider: Provider
    user: str | None = None
    """The user to whom it belongs; `None`: the operator, whose key all users' runs may use."""
    plan_type: str | None
    status: str | None
    """As the provider says: `allowed`, `allowed_warning`, `rejected`. `None` if it is unknown."""
    action: Literal["hold", "refuse", "warn"]
    """What happens to calls beyond what agents may use."""
    heard_at: datetime
    windows: list[WindowInfo]
    on_credits: bool | None = None
    """Whether credits paid for the last call, because a window is used up. `None`: no reply told of
    credits, as with the next two."""
    credits: str | None = None
    """What is left of them, as the provider says: an amount, or `unlimited`."""
    banked_resets: int | None = None
    """Resets that the person may have whenever they want."""
    held: list[RunId] = []
    """Runs in the caller's scope that wait for a reset: paused between two calls, or queued."""


class SubscriptionList(Reply, tag="plan_list"):
    accounts: list[SubscriptionInfo]


class SeenWindow(Struct, frozen=True, kw_only=True):
    """What one reply, or one line of a session file, says of a window."""

    window: str
    used_ratio: float | None = None
    resets_at: float | None = None
    """Unix time."""
    seconds: float | None = None
    """Its length."""
    rejected: bool = False


class SharedWindows(Struct, frozen=True, kw_only=True):
    """What a node has heard of a subscription."""

    provider: Provider
    uid: int | None = None
    """The user to whom it belongs; `None`: the operator."""
    login: str = ""
    """A hash of a credential."""
    organization: str | None = None
    plan_type: str | None = None
    status: str | None = None
    heard_at: float
    """Unix time."""
    windows: list[SeenWindow] = []
