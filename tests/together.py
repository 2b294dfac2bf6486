"""Many values for one test: `@together("text, size", [("1k", 1000), …])`.

A test of its own costs 5 ms of processor time: each worker of a session finds it, and its result is
sent and counted. A call of a pure function takes a hundredth of that. So a table of such calls is
one test, which tries all rows and tells of each that failed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_SHOWN = 300
"""Letters of a row in a report."""


def together(
    names: str | Sequence[str], rows: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with each of these rows, as `pytest.mark.parametrize` does. Only for a test that
    leaves its fixtures as they were. Raises `ExceptionGroup` with each failure and its row."""
    words = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    table = [(row,) if len(words) == 1 else tuple(row) for row in rows]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def every(**fixtures: Any) -> None:
            failed = []
            for row in table:
                try:
                    test(**dict(zip(words, row, strict=True)), **fixtures)
                except Exception as error:  # noqa: BLE001 - the next row is tried too
                    shown = row if len(words) > 1 else row[0]
                    error.add_note(f"with {', '.join(words)} = {shown!r}"[:_SHOWN])
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(table)} rows", failed)

        signature = inspect.signature(test)
        others = [each for name, each in signature.parameters.items() if name not in words]
        every.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return every

    return decorate
