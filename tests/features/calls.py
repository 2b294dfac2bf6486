"""Which functions of a feature are called."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def calls(feature: str) -> Iterator[list[str]]:
    """Yield the names of the functions of a feature that this thread calls meanwhile."""
    found: list[str] = []
    own = os.sep.join(("", "sfad", "features", feature, ""))

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and own in frame.f_code.co_filename:
            found.append(frame.f_code.co_name)

    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(None)
