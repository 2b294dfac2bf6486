"""The declaration."""

from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from ...config_values import PERCENT
from ...core.state.run import Run
from ...feature import Feature, Section
from ...protocol.requests.windows import Provider
from ...protocol.types import WindowShare

NAME = "plans"
"""Of the feature, and of its section."""

SAVED = "plan/"
"""Before `PROVIDER/ACCOUNT`: its keys in the spool."""

Share = Annotated[float, Meta(ge=0, lt=1, extra=PERCENT)]
"""A part of a window: `"20%"` in a file."""

Then = Literal["hold", "refuse", "warn"]


class Kept(NamedTuple):
    """What is kept of each window of a provider for the person, from 0 to 1, and what follows."""

    keep: float
    keep_week: float
    action: Then

    def kept(self, of_week: bool) -> float:
        return self.keep_week if of_week else self.keep


class ProviderPlansConfig(Struct, frozen=True, kw_only=True):
    """What differs for the subscriptions of one provider. `None`: as in `[plans]`."""

    keep: Share | None = None
    keep_week: Share | None = None
    action: Then | None = None


class PlansConfig(Struct, frozen=True, kw_only=True):
    """What agents leave of a subscription's windows to the person."""

    keep: Share = 0.0
    """Of the windows that are shorter than a day."""
    keep_week: Share = 0.0
    action: Then = "hold"
    anthropic: ProviderPlansConfig = ProviderPlansConfig()
    openai: ProviderPlansConfig = ProviderPlansConfig()

    def of(self, provider: Provider) -> Kept:
        """Return what holds for the subscriptions of a provider."""
        own = self.anthropic if provider == "anthropic" else self.openai
        return Kept(
            keep=self.keep if own.keep is None else own.keep,
            keep_week=self.keep_week if own.keep_week is None else own.keep_week,
            action=own.action or self.action,
        )


def _notes(run: Run, _now: float) -> dict[str, Any]:
    found = []
    for key, share in run.window_shares.items():
        provider, account, window = key.split("/", 2)
        found.append(
            WindowShare(provider=provider, account=account, window=window, share=round(share, 4))
        )
    return {"plans": tuple(found)}


FEATURE = Feature(
    sections=(Section(NAME, PlansConfig),),
    notes={"window_shares": _notes},
    saved=(SAVED,),
    recorded=True,
    barrier="barrier",
    shares=True,
    part="part",
)
