"""What connections carry, and which of it is a model call."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sfad.features.gateway.connection_watch import Traffic
from sfad.host.linux.callers import Opened

KIB = 1 << 10
TLS = (1800, 5000, 3)
"""What begins a connection: bytes sent, bytes received, segments."""


@dataclass
class Line:
    """A connection that is looked at each second."""

    traffic: Traffic = field(default_factory=lambda: Traffic(Opened(1, b"", 443), 0.0))
    at: float = 0.0

    def look(self, sent: int = 0, received: int = 0, segments: int = 1) -> Line:
        """Look at it after it has carried this."""
        self.at += 1
        last = self.traffic.last
        now = last._replace(
            sent=last.sent + sent,
            received=last.received + received,
            segments=last.segments + (segments if sent else 0),
        )
        self.traffic.take(now, self.at)
        return self

    def asks(self, size: int) -> Line:
        """Look at it after the body of a request."""
        return self.look(size, segments=size // 1400 + 1)

    def streams(self, looks: int, size: int = 4 * KIB) -> Line:
        """Look at it while a reply comes."""
        for _ in range(looks):
            self.look(0, size)
        return self

    @property
    def calls(self) -> tuple[bool, bool]:
        """Whether that is a call where nothing else explains it, and where telemetry may."""
        return self.traffic.is_call(certain=False), self.traffic.is_call(certain=True)


NO, LIKELY, SURE = (False, False), (True, False), (True, True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(Line(), NO, id="nothing"),
        pytest.param(Line().look(*TLS), NO, id="connected"),
        pytest.param(Line().look(*TLS).look(40, 40).look(40, 40).look(40, 40), NO, id="kept"),
        pytest.param(Line().asks(60 * KIB), NO, id="not answered yet"),
        pytest.param(Line().asks(60 * KIB).look(0, 900), LIKELY, id="answered at once"),
        pytest.param(Line().look(60 * KIB, 900, 50), LIKELY, id="both between two looks"),
        pytest.param(Line().asks(60 * KIB).streams(4), SURE, id="a stream"),
        pytest.param(Line().look(*TLS).asks(60 * KIB).streams(4), SURE, id="a stream by TLS"),
        pytest.param(Line().asks(40 * KIB).asks(40 * KIB).streams(4), SURE, id="a slow request"),
        pytest.param(Line().look(900).streams(4), LIKELY, id="a short prompt"),
        pytest.param(Line().look(900).streams(2), NO, id="a short prompt and reply"),
        pytest.param(Line().look(900).streams(9, 900 * KIB), NO, id="an update"),
        pytest.param(Line().look(20 * 450, 20 * 9000, 20), NO, id="packages of npm"),
        pytest.param(Line().look(40 * 450, 40 * 9000, 40).streams(3, 900 * KIB), NO, id="large"),
        pytest.param(Line().look(2500, 4000, 4).look(700, 900), NO, id="a login"),
        pytest.param(Line().asks(30 * KIB).look(700, 60 * KIB), LIKELY, id="then features"),
    ],
)
def test_what_is_a_call(line: Line, expected: tuple[bool, bool]) -> None:
    assert line.calls == expected


def test_batches_of_telemetry_are_never_certain() -> None:
    line = Line().look(*TLS)
    for _ in range(500):
        line.asks(60 * KIB).look(0, 500)
        assert not line.calls[1]


def test_a_call_after_others_on_the_same_connection_is_seen() -> None:
    line = Line()
    for _ in range(20):
        line.look(450, 3000)
        assert line.calls == NO
    assert line.asks(60 * KIB).streams(3).calls == SURE
