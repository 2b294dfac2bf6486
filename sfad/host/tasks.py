"""Tasks beside the loop, calls in threads, and the rounds of the trio loop."""

import errno
import types
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Hashable,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

import trio
from msgspec import Struct

# ---- Tasks beside the loop, and calls in threads


T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_NO_THREAD = "can't start new thread"
"""CPython's message, in a `RuntimeError` like many others."""


async def in_thread(
    call: Callable[[*Ts], T],
    *args: *Ts,
    abandon: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> T:
    """Do `trio.to_thread.run_sync`. Where no thread can be started (`TasksMax`, `ulimit -u`,
    memory), raise `OSError(EAGAIN)` instead of a `RuntimeError`; then nothing was called."""
    try:
        return await trio.to_thread.run_sync(
            call, *args, abandon_on_cancel=abandon, limiter=limiter
        )
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            raise
        raise OSError(errno.EAGAIN, _NO_THREAD) from error


RESTART_PAUSE = 1.0
"""Seconds until a task that failed starts again. Without a pause, a bug that it meets at once would
keep a CPU busy."""


class FairLock:
    """Lets one piece of work run at a time. Groups of askers take turns, however much each asks
    for: each has one piece of work in the queue that leads on."""

    def __init__(self) -> None:
        self._last = trio.Lock()
        self._of_groups: WeakValueDictionary[Hashable, trio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, asker: Sequence[Hashable] = ()) -> AsyncIterator[None]:
        """Wait for the turn of an asker, and keep it. `asker`: the groups that it is in, the
        narrowest first."""
        locks = [self._of_groups.setdefault(group, trio.Lock()) for group in asker]
        async with AsyncExitStack() as held:
            for lock in (*locks, self._last):
                await held.enter_async_context(lock)
            yield


async def keep_serving(
    serve: Callable[[], Awaitable[None]], failed: Callable[[Exception], object]
) -> None:
    """Call `serve` until it returns or is cancelled, and again after each failure, which `failed`
    is told.

    A bug in one task must not end the others, and all runs with them."""
    while True:
        try:
            return await serve()
        except Exception as error:  # noqa: BLE001 - whatever it is
            failed(error)
        await trio.sleep(RESTART_PAUSE)


_ASIDE = object()


class _Place(Struct, eq=False):
    """Where a coroutine waits in a `Line`."""

    coroutine: Coroutine[object, None, None] | None = None
    """One that `begin` executes."""
    event: trio.Event | None = None
    """What a task waits for instead."""
    found: Any = None
    error: Exception | None = None


@types.coroutine
def _leave(why: object) -> Generator[object, None, None]:
    yield why


@types.coroutine
def _rest(coroutine: Coroutine[object, None, None]) -> Generator[object, None, None]:
    yield from coroutine  # `await` refuses a coroutine that has begun


async def _rest_of(coroutine: Coroutine[object, None, None]) -> None:
    await _rest(coroutine)


class Background:
    """Starts tasks. Those that are started before `serve` begin with it, so that objects which
    start tasks can be made before.

    `failed` is told of exceptions that were not expected: a bug in one request must not leave every
    tree without a supervisor."""

    def __init__(self, failed: Callable[[object], None]) -> None:
        self._failed = failed
        self._waiting: list[Callable[[], Awaitable[object]]] = []
        self._nursery: trio.Nursery | None = None
        self._walks = FairLock()
        self.at_once = False
        """Whether `begin` is executing a coroutine."""

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            for task in self._waiting:
                self._nursery.start_soon(self._guarded, task)
            self._waiting.clear()
            task_status.started()
            await trio.sleep_forever()

    def start_soon(self, task: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Start a task. If it raises, `failed` is told."""
        if self._nursery is None:
            self._waiting.append(partial(task, *args))
        else:
            self._nursery.start_soon(self._guarded, task, *args)

    async def _guarded(self, task: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        try:
            await task(*args)
        except Exception:  # noqa: BLE001 - see the class
            self._failed(task)

    def begin(self, coroutine: Coroutine[object, None, None]) -> None:
        """Run a coroutine now, up to its first `await aside()`; what follows that is a task. So
        requests that wait for nothing are answered in the order in which they came, which tasks of
        trio do not promise, and cost no task. Raises what the coroutine raises before."""
        self.at_once = True
        try:
            left = coroutine.send(None)
        except StopIteration:
            return
        finally:
            self.at_once = False
        if left is _ASIDE:
            self.start_soon(_rest_of, coroutine)
        elif isinstance(left, _Place):
            left.coroutine = coroutine
        else:
            coroutine.close()
            raise RuntimeError(f"{coroutine} has waited inside the loop: it must go aside first")

    async def aside(self) -> None:
        """Call this before the first wait of a coroutine that `begin` may execute: from here on it
        is a task. In a task it does nothing."""
        if self.at_once:
            await _leave(_ASIDE)

    def go_on(self, place: _Place) -> None:
        if place.event is not None:
            place.event.set()
        elif place.coroutine is not None:
            try:
                self.begin(place.coroutine)
            except Exception:  # noqa: BLE001 - see the class
                self._failed(place.coroutine)

    def run_then(
        self,
        work: Callable[[], Awaitable[T]],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        expected: tuple[type[Exception], ...],
    ) -> None:
        """Call `done` with the result of `work`, or `failed` with what it raised. What was not
        `expected` is logged as well."""

        async def run() -> None:
            try:
                done(await work())
            except expected as error:
                failed(error)
            except Exception as error:  # noqa: BLE001 - see the class
                self._failed(work)
                failed(error)

        self.start_soon(run)

    async def walk(self, work: Callable[[], T], asker: Sequence[Hashable] = ()) -> T:
        """Return what `work` returns, which keeps a CPU busy: only one runs at a time, in a thread.
        `asker`: see `FairLock`. Raises what it raises."""
        async with self._walks.turn(asker):
            return await in_thread(work)


class Line:
    """Those that wait for the same thing go on in the order in which they came. Tasks of trio would
    not: trio executes those of a round in any order. Each key has a line of its own."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._waiting: dict[Hashable, deque[tuple[_Place, Callable[[], Awaitable[Any]]]]] = {}

    def is_empty(self, key: Hashable) -> bool:
        """Return whether all that came have gone on."""
        return key not in self._waiting

    async def wait(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return what `work` returns, or raise what it raises. It begins later; all that have come
        by then share it."""
        place = _Place()
        if key not in self._waiting:
            self._waiting[key] = deque()
            self._background.start_soon(self._lead, key)
        self._waiting[key].append((place, work))
        if self._background.at_once:  # this costs no task
            await _leave(place)
        else:
            place.event = trio.Event()
            await place.event.wait()
        if place.error is not None:
            raise place.error
        found: T = place.found
        return found

    async def _lead(self, key: Hashable) -> None:
        waiting = self._waiting[key]
        try:
            while waiting:
                together, found, error = len(waiting), None, None
                try:
                    found = await waiting[0][1]()
                except Exception as why:  # noqa: BLE001 - each raises it
                    error = why
                for number in range(together):
                    if number and not number % ROUND_REQUESTS:
                        await trio.lowlevel.checkpoint()
                    place, _ = waiting.popleft()
                    place.found, place.error = found, error
                    self._background.go_on(place)
        finally:
            del self._waiting[key]
            for place, _ in waiting:
                if place.coroutine is not None:
                    place.coroutine.close()  # the daemon ends


# ---- Turns of the trio loop: what its tasks do between two waits for I/O
#
# A burst of requests is handled in one round. What its parts have in common is done once, at the
# round's end.


ROUND_REQUESTS = 16
"""Requests of one client, or of those that waited for the same thing, that one round handles. A
client can have thousands: all at once would keep the loop from other clients, and from ends of
runs, for seconds."""


class LoopRounds(trio.abc.Instrument):
    """Counts the rounds of the loop that it instruments, and calls back at the end of one: a task
    would cost another round."""

    def __init__(self) -> None:
        self.number = 0
        self._calls: list[Callable[[], object]] = []

    def at_end(self, call: Callable[[], object]) -> None:
        """Call `call` once, before the loop waits for I/O. It must not raise, nor wake a task: the
        loop knows already how long it waits."""
        self._calls.append(call)

    def before_io_wait(self, _timeout: float) -> None:
        """Called by trio."""
        self.number += 1
        if self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                call()
