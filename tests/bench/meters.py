"""What 200 MB of stdout cost each meter, in seconds of CPU: `python -m tests.bench --only meters`.

The targets are 0.15 s for text and 0.5 s for JSON of other types; nothing asserts them. Fed in
pieces of 256 KiB.
"""

from __future__ import annotations

import time

from sfad.agents import AGENT_PROGRAMS, Meter

PIECE = 262_144
TOTAL = 200_000_000

LINES = {
    "text": b'lorem ipsum {dolor} sit amet, "consectetur" adipiscing elit, sed do eiusmod tempor\n',
    "one long line": b"lorem ipsum {dolor} sit amet, ",
    "short JSON": b'{"type":"other","i":1}\n',
    "JSON": b'{"type":"user","message":{"content":[{"type":"tool_result",'
    b'"tool_use_id":"toolu_00","content":"one"}]},"uuid":"x"}\n',
    "long JSON": b'{"type":"user","message":{"content":[{"type":"text","text":"'
    + b"one two three " * 1000
    + b'"}]}}\n',
}


def main() -> None:
    """Print a line for each kind of output."""
    for name, line in LINES.items():
        piece = (line * (PIECE // len(line) + 1))[:PIECE]
        figures = (
            f"{program.name} {seconds(program.meter([]), piece):.2f}" for program in AGENT_PROGRAMS
        )
        print(f"{name:14}", *figures, sep="  ")


def seconds(meter: Meter, piece: bytes) -> float:
    """Return the seconds of processor time for `TOTAL` bytes."""
    began = time.process_time()
    for _ in range(TOTAL // PIECE):
        meter.feed(memoryview(piece))
    return time.process_time() - began


if __name__ == "__main__":
    main()
