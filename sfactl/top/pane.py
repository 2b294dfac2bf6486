"""The lines below the tree: the output of a run, reasons, alerts, help."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sfad.protocol.types import RunId

MOST_LINES = 5000


@dataclass
class Pane:
    """`lines` are harmless: no control characters. It follows the end until a person scrolls up."""

    title: str
    run: RunId | None = None
    lines: list[str] = field(default_factory=list)
    follows: bool = False
    raw: bool = False
    """Lines that are too long go on anywhere, not after a word."""
    top: int = 0

    def add(self, lines: Iterable[str]) -> None:
        self.lines += lines
        surplus = len(self.lines) - MOST_LINES
        if surplus > 0:
            del self.lines[:surplus]
            self.top = max(self.top - surplus, 0)

    def scroll(self, lines: int, height: int, total: int) -> None:
        """Scroll within `total` drawn lines, of which `height` are seen."""
        last = max(total - height, 0)
        self.top = min(max((last if self.follows else self.top) + lines, 0), last)
        self.follows = lines > 0 and self.top == last

    def seen_from(self, height: int, total: int) -> int:
        last = max(total - height, 0)
        return last if self.follows else min(self.top, last)


HELP = """\
↑ ↓ j k PgUp PgDn Home End  choose a run    n    the next run in trouble
← → space  fold, unfold                     z    fold all, unfold all
s  stop it and all below it                 l    change a limit
p  pause            r  resume               a d  approve, deny more room
o  output           O  stderr               w    why, with all limits
/  show only runs with these words          e    hide or show ended runs
< >  sort by trouble, age, cost, cpu, …     A    alerts
[ ]  scroll this part                       Esc  close it
Ctrl-Z  suspend                             q    leave (Ctrl-C too); runs go on
Limits: t time, n turns, m messages, k tokens, $ cost, p planning, x execution,
o output, M memory, # processes, c cores; yellow from alerts.limit_share on, red when exceeded
""".splitlines()
