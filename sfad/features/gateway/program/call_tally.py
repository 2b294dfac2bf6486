"""What a call has used, read from its reply while that passes."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from ....agents.counters import BYTES_A_TOKEN
from ....host.http_connection import ClientGoneError
from ....protocol.requests.gateway import AdmitCall, CallDecision, EndCall
from ....protocol.texts.units import format_elapsed
from ....protocol.types import Tokens
from ..messages import SilentCall, UnaskedRequest
from .apis import Api, ModelCall
from .apis.usage import Said, clipped
from .bodies.coding import Coding, UnreadableBodyError
from .bodies.estimate import Estimates
from .daemon_link import Daemon
from .upstream_connections import Reply

# ---- The memory that the bodies of requests and what is kept of replies may take


MAX_BODIES = 512 << 20
"""Bytes of all requests and replies together. A run may take as much as it leaves to the others."""


class NoMemoryError(Exception):
    """Other calls take all memory that they may."""


class BodyMemory:
    """The bodies that are held in memory."""

    def __init__(self, *, several_users: bool = False) -> None:
        """`several_users`: a user may take half of what other users leave, so that no user's runs
        together take all."""
        self._several_users = several_users
        self.held = 0
        self.held_by: Counter[str] = Counter()
        """By run."""
        self._of_users: Counter[int | None] = Counter()

    @contextmanager
    def space(self, run: str, user: int | None) -> Iterator["BodySpace"]:
        """Give room for the bodies of one request of a user's run."""
        space = BodySpace(self, run, user)
        try:
            yield space
        finally:
            self.count(space, -space.size)

    def count(self, space: "BodySpace", more: int) -> None:
        """Count bytes that a request takes, or gives up."""
        self.held += more
        self.held_by[space.run] += more
        self._of_users[space.user] += more
        if not self.held_by[space.run]:
            del self.held_by[space.run]

    def left(self, user: int | None) -> int:
        """Return the bytes that the runs of a user may take beside what they have."""
        own = self._of_users[user]
        return (MAX_BODIES - (self.held - own)) // (2 if self._several_users else 1) - own


class BodySpace:
    """What the bodies of one request take."""

    def __init__(self, memory: BodyMemory, run: str, user: int | None) -> None:
        self._memory = memory
        self.run = run
        self.user = user
        self.size = 0

    def grow(self, more: int) -> None:
        """Take so many bytes more. Raises `NoMemoryError`."""
        free = self._memory.left(self.user) - more
        own = self._memory.held_by[self.run] + more
        if own > free:
            raise NoMemoryError(
                "the gateway has no memory for this call: "
                f"run {self.run} would hold {own >> 20} MiB, and {max(0, free) >> 20} of "
                f"{MAX_BODIES >> 20} MiB would be left for other runs; try again"
            )
        self._memory.count(self, more)
        self.size += more


# ---- What one call has used


MOST_BYTES_A_TOKEN = 16
"""Of what a model has written. A provider that tells fewer tokens than that, or no input, is not
believed. Text and code have three to four bytes a token."""
MAX_PIECE = 1 << 20
"""Bytes that one piece of a reply may decode to."""


UNCOUNTED = 256 << 10
"""Bytes that are kept of a reply before they count. Where memory is short, the replies of most
calls can be read all the same."""
GIVEN_UP_AFTER = 3.0
"""Seconds without a byte, after which an agent that hangs up counts as one whose call has failed.
Before that, a person or another call may have made it needless."""


HIDDEN_A_SECOND = 200
"""Tokens of thinking that a model may write before its first word, as fast models do. Many
providers show none of them."""
UNTHINKING = 2.0
"""Seconds without a word in which a model mostly reads its input."""


class _Used(NamedTuple):
    """What to charge for a call: `None` for what was reserved. The others as in `EndCall`."""

    tokens: Tokens | None
    partial: bool = False
    sure: Tokens | None = None
    cost_usd: float | None = None


_AS_RESERVED = _Used(None)
_WHOLE_INPUT = {"input_tokens", "prompt_tokens", "promptTokenCount"}
"""Fields without which the input is estimated."""


class RequestRecord(Protocol):
    """What is told to the daemon of a request, once it has ended."""

    error: str | None
    sent: bool
    """The provider may have the request."""
    whole: bool

    def sending(self) -> None: ...

    def begun(self, response: Reply) -> None: ...

    reads_subscriptions: bool
    """Whether its reply may tell of a subscription."""

    def look_at_subscription(self, response: Reply, body: bytes) -> None:
        """Tell what the reply says of a subscription. `body`: of a refusal, as far as it was
        read."""

    def piece(self, data: bytes) -> None: ...

    def silent(self) -> None:
        """Tell the daemon if no byte of a reply has come by now."""

    def broken(self, error: BaseException) -> None: ...

    def settle(self) -> None:
        """Tell the daemon what it has used."""


class UnaskedTally:
    """Of a request whose use cannot be told."""

    def __init__(self, daemon: Daemon, run: str, upstream: str, path: str) -> None:
        self._daemon = daemon
        self._run, self._upstream, self._path = run, upstream, path
        self._asked = time.time()
        self._began = time.monotonic()
        self._first_byte: float | None = None
        self._status: int | None = None
        self.error: str | None = None
        self.sent = False
        self.whole = False

    def sending(self) -> None:
        self.sent = True

    def begun(self, response: Reply) -> None:
        self._status = response.status
        self._first_byte = time.monotonic() - self._began

    reads_subscriptions = False

    def look_at_subscription(self, response: Reply, body: bytes) -> None:
        pass

    def piece(self, data: bytes) -> None:
        del data

    def silent(self) -> None:
        pass

    def broken(self, error: BaseException) -> None:
        self.error = self.error or str(error) or type(error).__name__

    def settle(self, refused: str | None = None) -> None:
        seconds = time.monotonic() - self._began if refused is None else None
        self._daemon.unasked(
            UnaskedRequest(
                id=0, number=0, run=self._run, time=self._asked, upstream=self._upstream,
                path=self._path, refused=refused, status=self._status,
                first_byte_s=self._first_byte, seconds=seconds, error=self.error,
            )
        )  # fmt: skip


class CallTally:
    """What is known of a call, until it is told to the daemon."""

    def __init__(
        self,
        daemon: Daemon,
        estimates: Estimates,
        asked: AdmitCall,
        admitted: CallDecision,
        api: Api,
        call: ModelCall,
        host: str,
        space: BodySpace,
        subscription: Callable[[Reply, bytes], None] | None = None,
    ) -> None:
        """`host`: where it goes. `space`: for
        what is kept of the reply. `subscription`: takes a reply that may tell of a subscription."""
        self._subscription = subscription
        self.reads_subscriptions = subscription is not None
        self._space = space
        self._held = 0
        """Bytes of `space` that were taken."""
        self._daemon = daemon
        self._estimates = estimates
        assert admitted.reservation is not None
        self._asked = asked
        self._reservation = admitted.reservation
        self._max_output = admitted.max_output
        self._api = api
        self._call = call
        self._host = host
        self._told_silent = False
        self._reply = api.reply(streamed=call.streams)
        self._began = time.monotonic()
        self._first_byte: float | None = None
        self._first_word: float | None = None
        self._status: int | None = None
        self._coding: Coding | None = None
        self._unreadable = False
        self.error: str | None = None
        self.sent = False
        self.whole = False
        self._failed = False
        self._note()

    def sending(self) -> None:
        self.sent = True
        self._note()

    def begun(self, response: Reply) -> None:
        self._status = response.status
        self._failed = response.status >= 400
        self._first_byte = time.monotonic() - self._began
        if self._told_silent:
            self._tell_silence(None)
        kind = response.headers.get("content-type", "")
        # servers that cannot stream answer in one piece, and Gemini streams one JSON array if it is
        # not asked for events
        if kind:
            self._reply = self._api.reply(streamed="text/event-stream" in kind.lower())
        try:
            self._coding = Coding(response.headers.get("content-encoding", ""))
        except UnreadableBodyError as error:
            self._stop_reading(error)
        if not 200 <= response.status < 300 or self._unreadable:  # else the note is right
            self._note()

    def look_at_subscription(self, response: Reply, body: bytes) -> None:
        if self._subscription is not None:
            self._subscription(response, body)

    def piece(self, data: bytes) -> None:
        if self._coding is None:
            return
        try:
            self._reply.feed(self._coding.feed(data, MAX_PIECE))
            self._grow(self._coding.window + self._reply.held)
        except (UnreadableBodyError, NoMemoryError) as error:
            self._stop_reading(error)
        if self._first_word is None and self._reply.written:
            self._first_word = time.monotonic() - self._began
        self._note()

    def _grow(self, held: int) -> None:
        if held > max(self._held, UNCOUNTED):
            self._space.grow(held - self._held)
            self._held = held

    def _note(self) -> None:
        """Note what is to be charged if the gateway is killed now."""
        used = self._used()
        if used.partial and self._reply.tokens is None and not self._reply.written:
            used = _AS_RESERVED  # whether the model had begun, and how far it was, is not known
        how = "as reserved" if used.tokens is None else "for what had passed"
        told = f"ended; it was charged {how}" if self.sent else "was sent; it costs nothing"
        self._daemon.note(self._ended(used, f"the gateway was killed before it {told}"))

    def _stop_reading(self, error: Exception) -> None:
        self._coding, self._unreadable, self.error = (
            None,
            True,
            f"the reply cannot be read: {error}",
        )
        self._reply.abandon()

    def broken(self, error: BaseException) -> None:
        self.error = self.error or str(error) or type(error).__name__
        if self._status is not None:
            return
        waited = time.monotonic() - self._began
        if not isinstance(error, ClientGoneError):
            self._failed = isinstance(error, Exception)
        elif waited >= GIVEN_UP_AFTER:
            self._failed, self.error = (
                True,
                f"given up after {format_elapsed(waited)} without a byte from {self._host}",
            )

    def silent(self) -> None:
        if self._status is None:
            self._told_silent = True
            self._tell_silence(time.monotonic() - self._began)

    def _tell_silence(self, seconds: float | None) -> None:
        self._daemon.silent(
            SilentCall(
                id=0,
                run=self._asked.run,
                reservation=self._reservation,
                host=self._host,
                silent_s=seconds,
            )
        )

    def settle(self) -> None:
        if self.whole:
            self._reply.end()
        self.error = self.error or self._reply.failed or None
        used = self._used()
        if used.tokens is not None and not used.partial:
            self._estimates.learn(self._asked.run, self._call, used.tokens, self._reply.written)
        self._daemon.ended(self._ended(used, self.error))

    def _ended(self, used: _Used, error: str | None) -> EndCall:
        models = f"{self._call.model} {self._reply.model}"  # an alias tells no version
        tiers = models, self._call.tiers, self._reply.tiers
        return EndCall(
            id=0,
            run=self._asked.run,
            model=self._asked.model,
            reservation=self._reservation,
            status=self._status,
            tokens=used.tokens,
            partial=used.partial,
            sure=used.sure,
            tools=list(self._reply.tools),
            factor=self._api.factor(*tiers, url=self._asked.url),
            least_factor=self._api.least_factor(*tiers),
            fees_usd=self._reply.fees_usd,
            unsure_fees_usd=self._reply.unsure_fees_usd,
            cost_usd=used.cost_usd,
            served=self._reply.model,
            others=self._reply.others,
            first_byte_s=self._first_byte,
            seconds=time.monotonic() - self._began,
            error=error,
            cut=self._reply.cut and self._max_output is not None,
            failed=self._failed or bool(self._reply.failed and not self._shows),
            api=self._api.name,
            url=self._asked.url,
            free=self._asked.free,
        )

    def _used(self) -> _Used:
        reply = self._reply
        if not self.sent or (self._status is not None and not 200 <= self._status < 300):
            return _Used(Tokens())  # providers do not bill a call that they answered with an error
        if self._unreadable or reply.unknown or (self._call.background and not reply.told):
            return _AS_RESERVED
        if reply.failed and reply.said is None and not self._shows:
            return _Used(Tokens(), partial=True)  # an error before the first token
        said = reply.said or Said(Tokens(), Tokens())
        known = said.tokens
        if not known.input or said.lost & _WHOLE_INPUT:
            known = replace(known, input=max(known.input, self._asked.input_tokens))
        believed = known == said.tokens and known.output * MOST_BYTES_A_TOKEN >= reply.written
        if reply.told and believed:
            return self._as_told(said)
        if reply.failed and not self._shows:
            # most providers bill nothing, and some the input
            return _Used(known, sure=Tokens())
        return self._estimated(said, known)

    @property
    def _shows(self) -> bool:
        """Whether a part of an answer has come."""
        reply = self._reply
        return bool(reply.begun or reply.written or any(reply.media.values()) or reply.tools)

    def _as_told(self, said: Said) -> _Used:
        tokens, sure = self._with_media(said.tokens), said.sure
        unsaid = tokens is not said.tokens
        if self._call.long_cache and not said.lifetimes:
            tokens = replace(tokens, long_write=tokens.cache_write)
        return _Used(
            tokens,
            partial=unsaid or bool(said.lost) if said.cost_usd is None else "cost" in said.lost,
            sure=sure if sure != tokens else None,
            cost_usd=said.cost_usd,
        )

    def _with_media(self, tokens: Tokens) -> Tokens:
        """Return what is told, with an estimate of what request and reply have beside text, where
        the provider tells no modality. Of input, audio alone costs more than text."""
        heard, shown = self._call.media.get("audio", 0), self._reply.media
        if tokens.modes or not (heard or any(shown.values())):
            return tokens
        modes = {mode: Tokens(output=count) for mode, count in shown.items()}
        if heard:
            modes["audio"] = replace(modes.get("audio", Tokens()), input=heard)
        return clipped(replace(tokens, modes=modes))

    def _estimated(self, said: Said, known: Tokens) -> _Used:
        reply = self._reply
        estimated = self._estimates.output(self._asked.run, self._call, reply.written)
        media = {mode: Tokens(output=count) for mode, count in reply.media.items() if count}
        most = (self._max_output or self._asked.max_output) * self._asked.choices
        output = max(estimated, self._hidden()) + sum(each.output for each in media.values())
        charged = replace(
            known,
            output=max(known.output, min(output, most)),
            modes=known.modes or media,
        )
        # the words alone do not tell how much the model has thought, but that they have at least so
        # many tokens
        least = min(charged.output, max(said.sure.output, reply.written // BYTES_A_TOKEN))
        sure = clipped(replace(said.sure, output=least))
        charged = clipped(charged)
        return _Used(charged, partial=True, sure=sure if sure != charged else None)

    def _hidden(self) -> int:
        """Return how many tokens the model may have thought before its first word, since its reply
        has begun."""
        if self._first_byte is None:
            return 0
        silent = (
            self._first_word if self._first_word is not None else time.monotonic() - self._began
        )
        return int(max(0.0, silent - UNTHINKING) * HIDDEN_A_SECOND)
