"""Tasks beside the loop, calls in threads, and the rounds of the trio loop."""

import errno
import types
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
from typing import TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

import trio

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


class Line:
    """Lets tasks go on in the order in which they have taken a place, one a round of the loop: trio
    executes the tasks of a round in any order, and thousands at once would keep it from all else.
    Each key has a line of its own."""

    def __init__(self) -> None:
        self._last: dict[Hashable, trio.Event] = {}
        """Is set once the last one in the line has gone on."""

    def is_empty(self, key: Hashable) -> bool:
        """Return whether all that took a place have gone on."""
        return key not in self._last

    def place(self, key: Hashable, work: Awaitable[T]) -> Awaitable[T]:
        """Take a place now. Return what awaits `work`, and then those in front. It must be awaited:
        those behind it wait for it."""
        before, self._last[key] = self._last.get(key), (gone := trio.Event())
        return self._go_on(key, work, before, gone)

    async def _go_on(
        self, key: Hashable, work: Awaitable[T], before: trio.Event | None, gone: trio.Event
    ) -> T:
        try:
            try:
                return await work
            finally:
                if before is not None:
                    await before.wait()
        finally:
            gone.set()
            if self._last[key] is gone:
                del self._last[key]


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


@types.coroutine
def _go_aside() -> Generator[object, None, None]:
    yield _ASIDE


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
        self._at_once = False
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
        self._at_once = True
        try:
            left = coroutine.send(None)
        except StopIteration:
            return
        finally:
            self._at_once = False
        if left is not _ASIDE:
            coroutine.close()
            raise RuntimeError(f"{coroutine} has waited inside the loop: it must go aside first")
        self.start_soon(_rest_of, coroutine)

    async def aside(self) -> None:
        """Call this before the first wait of a coroutine that `begin` may execute: from here on it
        is a task. In a task it does nothing."""
        if self._at_once:
            await _go_aside()

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
