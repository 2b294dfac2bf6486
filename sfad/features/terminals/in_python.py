"""The holder of a terminal in Python (see `holding`). Run as a file with -I -S; imports nothing of
the package but `screen`, which is beside it."""

import errno
import os
import select
import struct
import sys
import time
from fcntl import ioctl
from termios import TIOCGWINSZ, TIOCSWINSZ

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from screen import Screen, Tokens  # type: ignore[import-not-found]

MASTER, OUTPUT, ORDERS, RECORD = range(4)
PIECE, ORDER, PAUSE = 65536, 4096, 0.1
APART, MOST_RECORDED = 10, 8 << 20
ENTRY = struct.Struct("=qqII")


class Holder:
    def __init__(self) -> None:
        rows, columns = struct.unpack("=4H", ioctl(MASTER, TIOCGWINSZ, bytes(8)))[:2]
        self.screen = Screen(rows or 24, columns or 80)
        self.tokens = Tokens()
        self.typed = b""
        self.orders = b""
        self.offset = os.lseek(OUTPUT, 0, os.SEEK_END)
        self.recorded = os.lseek(RECORD, 0, os.SEEK_END)
        self.last = 0
        self.record(always=True)

    def record(self, *, always: bool = False) -> None:
        now = time.time_ns() // 1_000_000
        if always or (now - self.last >= APART and self.recorded <= MOST_RECORDED):
            self.last = now
            entry = ENTRY.pack(now, self.offset, self.screen.rows, self.screen.columns)
            self.recorded += len(entry)
            try:
                os.write(RECORD, entry)
            except OSError:
                return

    def keep(self, data: bytes) -> None:
        self.record()
        while data:
            try:
                written = os.write(OUTPUT, data)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    return
                time.sleep(PAUSE)
            else:
                self.offset += written
                data = data[written:]

    def take_output(self) -> bool:
        try:
            data = os.read(MASTER, PIECE)
        except BlockingIOError:
            return False
        except OSError:
            os._exit(0)
        if not data:
            os._exit(0)
        self.keep(data)
        for kind, token in self.tokens(data):
            if kind == "csi":
                self.answer(token)
            self.screen.feed(token.encode())
        return True

    def answer(self, asked: str) -> None:
        screen = self.screen
        body, final = asked[2:-1], asked[-1]
        private = "?" if body.startswith("?") else ""
        row = screen.row + 1
        said = ""
        if asked == "\x1b[5n":
            said = "\x1b[0n"
        elif final == "n" and body.lstrip("?") == "6":
            said = f"\x1b[{private}{row};{screen.column + 1}R"
        elif final == "c" and body in ("", "0"):
            said = "\x1b[?62;22c"
        elif final == "c" and body in (">", ">0"):
            said = "\x1b[>0;10;0c"
        elif final == "p" and body.endswith("$"):
            said = f"\x1b[{body[:-1]};0$y"
        elif asked == "\x1b[18t":
            said = f"\x1b[8;{screen.rows};{screen.columns}t"
        if len(self.typed) < ORDER + 1024:
            self.typed += said.encode()

    def type(self) -> None:
        try:
            self.typed = self.typed[os.write(MASTER, self.typed) :]
        except BlockingIOError:
            return
        except OSError:
            self.typed = b""

    def take_orders(self) -> None:
        self.orders += os.read(ORDERS, ORDER)
        while self.orders:
            kind = self.orders[:1]
            if kind == b"e":
                while self.take_output():
                    pass
                os._exit(0)
            length = 9
            if kind == b"k":
                if len(self.orders) < 3:
                    return
                length = 3 + int.from_bytes(self.orders[1:3], "little")
            if len(self.orders) < length:
                return
            order, self.orders = self.orders[:length], self.orders[length:]
            if kind == b"k":
                self.typed += order[3:]
            else:
                ioctl(MASTER, TIOCSWINSZ, order[1:])
                self.screen.resize(*struct.unpack("=4H", order[1:])[:2])
                self.record(always=True)


def main() -> None:
    os.closerange(4, 1 << 16)  # what the daemon has inherited and does not know
    holder = Holder()
    while True:
        reads = [MASTER] if holder.typed else [MASTER, ORDERS]
        ready, writable, _ = select.select(reads, [MASTER] if holder.typed else [], [])
        if MASTER in ready:
            holder.take_output()
        if writable:
            holder.type()
        if ORDERS in ready and not holder.typed:
            holder.take_orders()


if __name__ == "__main__":
    main()
