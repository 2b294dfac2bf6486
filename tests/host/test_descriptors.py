"""Descriptors of clients are closed soon, even if close(2) fails for one."""

from __future__ import annotations

import os

from sfad.host import descriptors
from tests.harness import wait_until


def test_a_descriptor_that_cannot_be_closed_does_not_stop_the_others() -> None:
    read, write = os.pipe()
    descriptors.close_soon([1 << 20, write])
    assert os.read(read, 1) == b"", "the write end was closed"
    os.close(read)
    wait_until(lambda: descriptors.threads() == 0, "no thread is left")
