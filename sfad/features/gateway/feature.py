"""The declaration."""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from ...config_values import NAME_MAX, PATH, URL, VARIABLE, Form
from ...core.state.access import Access
from ...core.state.policy import DURATION, Policy
from ...feature import Feature, Section
from ...protocol.requests.gateway import AdmitCall, EndCall, SeeWindows
from .messages import (
    FindCaller,
    RefusedEgress,
    ServeGateway,
    SilentCall,
    UnaskedRequest,
    WithdrawCall,
)

NAME = "gateway"
"""Of the feature, and of its section."""


def _check_patterns(patterns: tuple[str, ...]) -> None:
    if "" in patterns:
        raise ValueError


_PATTERNS = {
    "form": Form(
        'a list of names in which * stands for any letters, such as "claude-*"', _check_patterns
    )
}


class CallBounds(Struct, frozen=True, kw_only=True):
    """How many model calls a run, or a user, may make. `None`: any number."""

    calls_per_minute: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    concurrent_calls: Annotated[int, Meta(ge=1, le=100_000)] | None = None

    @property
    def any(self) -> bool:
        return self.calls_per_minute is not None or self.concurrent_calls is not None


class UpstreamConfig(Struct, frozen=True, kw_only=True):
    """A provider of models."""

    NAMES: ClassVar = (
        r"(?!(\.|\.\.|run)$)[A-Za-z0-9._-]+",
        'an upstream\'s name has only A-Z a-z 0-9 . _ -, and is not ".", ".." or "run": '
        "it is a part of a URL",
    )
    EITHER: ClassVar = (("key_file", "key_env", "a key comes from one place"),)

    url: Annotated[
        str, Meta(pattern=r"^https?://[^/?#@]+(/[^?#]*[^/?#])?$", max_length=1000, extra=URL)
    ]
    """What the provider's own base URL variable would hold."""
    api: Literal["anthropic", "openai-responses", "openai-chat", "gemini"]
    key_env: (
        Annotated[
            str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=NAME_MAX, extra=VARIABLE)
        ]
        | None
    ) = None
    """The daemon's variable that holds the key. Without a key, here or in `key_file`, callers use
    their own."""
    key_file: Annotated[str, Meta(extra=PATH)] | None = None
    free: bool | Literal["auto"] = "auto"
    """Whether its calls cost nothing. `auto`: those of local models, which Ollama, llama.cpp, LM
    Studio or vLLM serve at a loopback or private address."""


class GatewayConfig(Struct, frozen=True, kw_only=True):
    enabled: bool | Literal["auto"] = "auto"
    """`auto`: runs use it, and it starts with the first call or agent program. `True`: it runs
    always. `False`: only with `--gateway`."""
    min_output: Annotated[int, Meta(ge=1, le=1_000_000)] = 4096
    """Tokens: a call is not lowered further to fit into a limit."""
    wait: Annotated[float, Meta(ge=0, le=3600, extra=DURATION)] = 60.0
    ungated: bool = False
    models: Annotated[tuple[str, ...], Meta(extra=_PATTERNS)] = ()
    """Patterns of models that may be called; all, where there is none."""
    per_run: CallBounds = CallBounds()
    per_user: CallBounds = CallBounds()
    upstreams: dict[str, UpstreamConfig] = msgspec.field(
        default_factory=lambda: {
            "anthropic": UpstreamConfig(url="https://api.anthropic.com", api="anthropic"),
            "openai": UpstreamConfig(url="https://api.openai.com/v1", api="openai-responses"),
            "gemini": UpstreamConfig(url="https://generativelanguage.googleapis.com", api="gemini"),
        }
    )


def of(policy: Policy) -> GatewayConfig:
    return policy.section(NAME, GatewayConfig)


_OF_CALLS = Access("gateway", inside=False, narrowed_by=None)
_OF_ITSELF = Access("gateway", inside=False, narrowed_by=None, scope="none")

FEATURE = Feature(
    sections=(Section(NAME, GatewayConfig),),
    verbs={
        ServeGateway: _OF_ITSELF,
        FindCaller: _OF_ITSELF,
        AdmitCall: _OF_CALLS,
        WithdrawCall: _OF_CALLS,
        EndCall: _OF_CALLS,
        SilentCall: _OF_CALLS,
        UnaskedRequest: _OF_CALLS,
        RefusedEgress: _OF_CALLS,
        SeeWindows: _OF_CALLS,
    },
    leads=True,
    calls="calls",
    part="part",
)
