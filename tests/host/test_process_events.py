"""The kernel's events of processes."""

from __future__ import annotations

import os
import select
from contextlib import suppress

import pytest

from sfad.host.linux.process_events import ExecEvents, ForkAlarm


def test_who_listens_does_not_hear_the_answers_to_others() -> None:
    try:
        alarm = ForkAlarm(0, 1 << 31)  # no pid is as high
    except OSError as error:
        pytest.skip(f"this kernel does not tell: {error}")
    with alarm:
        # another program may have begun to listen while this one did
        with suppress(BlockingIOError):
            while os.read(alarm.fileno(), 4096):
                pass
        ExecEvents().close()
        assert select.select([alarm], [], [], 0)[0] == []
