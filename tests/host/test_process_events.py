"""The kernel's events of processes."""

from __future__ import annotations

import select

from sfad.host.process_events import ExecEvents, ForkAlarm


def test_who_listens_does_not_hear_the_answers_to_others() -> None:
    with ForkAlarm(0, 1 << 31) as alarm:  # no pid is as high
        ExecEvents().close()
        assert select.select([alarm], [], [], 0)[0] == []
