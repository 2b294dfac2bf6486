"""Model calls: what is asked and told of them by what they pass through."""

from __future__ import annotations

from typing import Literal

from ..types import Modality, Tokens
from .base import Reply, Request
from .windows import Provider, SeenWindow


class AdmitCall(Request, tag="admit_call"):
    """Ask whether a model call may be made. Answered by `CallDecision` once that is decided."""

    run: str
    model: str
    input_tokens: int
    """An estimate."""
    max_output: int
    """Tokens that an answer may have."""
    fixed: bool = False
    """`max_output` cannot be lowered."""
    choices: int = 1
    caches: bool = False
    """Its input may be written to a cache."""
    more_input: int = 0
    """Tokens that its input may have beyond the estimate. So much is kept from other calls."""
    likely_more: int | None = None
    """The part of `more_input` by which estimates are often wrong. So much is kept from its own
    output; `None`: all of it."""
    factor: float = 1.0
    """What its tier multiplies all prices by."""
    long_cache: bool = False
    """What it writes to a cache is kept for an hour, at twice the price of input."""
    media: dict[Modality, int] = {}
    """The part of `input_tokens` that is not text."""
    most_media: dict[Modality, int] = {}
    """The part of it and `more_input` together that may not be text."""
    text_only: bool = False
    """It says that it wants text only."""
    fees_usd: float = 0.0
    """What the provider's tools may cost."""
    upstream: str = ""
    streamed: bool = False
    others: list[str] = []
    """Other models that the provider may ask for this call. The call is refused if the run may not
    call one of them."""
    api: str = ""
    """The format of its upstream, which tells the provider of a model without a price."""
    url: str = ""
    """Where its upstream is, which tells the provider whose price counts."""
    login: str = ""
    """A short hash of the call's credential, which tells its account; empty where it has none, or
    where its upstream is not believed about windows."""
    free: Literal["local", "config"] | None = None
    """Why it costs nothing: the model is local, or the operator says so; `None`: it costs."""


class EndCall(Request, tag="end_call"):
    """Tell what a call has used. Answered by `Done`."""

    run: str
    reservation: str
    model: str
    tokens: Tokens | None = None
    """`None`: the reply could not be read, so what was reserved counts."""
    partial: bool = False
    """The provider has not told its final figures, so it may have been more."""
    sure: Tokens | None = None
    """What it has used at least, where `tokens` is an estimate that may be too high."""
    status: int | None = None
    """Of HTTP; `None` if no reply came."""
    tools: list[tuple[str, str]] = []
    """Tool calls that the model has asked for: name, digest of the arguments."""
    factor: float = 1.0
    fees_usd: float = 0.0
    """What the provider's tools have cost."""
    unsure_fees_usd: float = 0.0
    """The part of it that may be less."""
    cost_usd: float | None = None
    """The whole cost, where the reply says it itself."""
    served: str = ""
    """The model that the reply says has answered."""
    least_factor: float | None = None
    """What `factor` is at least, where the reply does not tell the tier; `None`: `factor`."""
    others: dict[str, Tokens] = {}
    """What other models have used that the provider asked for this call, by their names."""
    first_byte_s: float | None = None
    seconds: float = 0.0
    error: str | None = None
    failed: bool = False
    """The upstream did not answer, or answered with an error, or its key cannot be read."""
    cut: bool = False
    """The reply ended at a maximum that the gateway had set."""
    api: str = ""
    """As in `AdmitCall`."""
    url: str = ""
    """As in `AdmitCall`."""
    free: Literal["local", "config"] | None = None
    """As in `AdmitCall`."""


class SeeWindows(Request, tag="see_plan"):
    """Tell what a reply says of the windows of an account. Answered by `Done`."""

    run: str
    provider: Provider
    time: float
    """Unix time at which the reply came."""
    login: str
    """A hash of the call's credential, as in `AdmitCall`."""
    organization: str | None = None
    """A hash of the organization, where the reply names it."""
    plan_type: str | None = None
    status: str | None = None
    windows: list[SeenWindow] = []
    retry_after: float | None = None
    """Seconds, with a refusal."""
    on_credits: bool | None = None
    """Whether credits pay for the call because a window is used up."""
    credits: str | None = None
    """What is left of them: an amount, or `unlimited`."""
    banked_resets: int | None = None
    """Resets that the person may have whenever they want."""
    keyed: bool = False
    """The operator's key was used, so the account is of all users whose runs use it."""


class CallDecision(Reply, tag="call_decision"):
    """`max_output`: what the call must be lowered to; `None` if it stays. `refused`: why it must
    not be made."""

    reservation: str | None = None
    max_output: int | None = None
    refused: str | None = None
    retry_after: float | None = None
    """With `refused`: seconds after which the call may be asked for again."""
    last: str | None = None
    """It is the last call of its run: the sentence that is put into it."""
    holds_rejected: bool = False
    """If the provider refuses it because a window is used up, it is to be asked for again, and
    waits then for the reset."""
