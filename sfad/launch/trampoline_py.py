"""The trampoline's contract (see `trampoline`) in Python. Run as a file with -I -S; imports nothing of the package."""

import ctypes
import errno
import os
import signal
import struct
import sys

ATTACH, ENTER, CLOSE, EXEC, INTERPRET = 1, 2, 3, 4, 5
_THE_COMMANDS = (errno.E2BIG, errno.EAGAIN, errno.ENOMEM, errno.ETXTBSY)


def _array(items: list[bytes]) -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * (len(items) + 1))(*items, None)


def _environment() -> "ctypes.Array[ctypes.c_char_p]":
    """As the kernel was given it: `os.environ` would drop what is not KEY=VALUE, and the start of Python may add LC_CTYPE."""
    with open("/proc/self/environ", "rb") as file:
        return _array(file.read().split(b"\0")[:-1])


def _exec(path: bytes, argv: list[bytes]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.execve(path, _array(argv), _environment())
    return ctypes.get_errno()


def _exec_first(shell: bytes, files: list[bytes], argv: list[bytes]) -> tuple[int, int]:
    verdict = errno.ENOENT
    for file in files:
        failure = _exec(file, argv)
        if failure == errno.ENOEXEC:
            return INTERPRET, _exec(shell, [shell, file, *argv[1:]])
        if failure not in (errno.ENOENT, errno.ENOTDIR):
            verdict = failure
        if failure in _THE_COMMANDS:
            break
    return (INTERPRET if verdict == errno.ENOENT and any(map(os.path.exists, files)) else EXEC), verdict


def main() -> int:
    """Attaches itself and becomes the command; returns only on failure, with the errno, or with 0 at a shut gate."""
    shell, umask, cwd, *words = (os.fsencode(word) for word in sys.argv[1:])
    files, argv = words[: words.index(b"")], words[words.index(b"") + 1 :]
    stage = ATTACH
    # of these Python ignores two, which would be inherited, and makes an exception of one
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.umask(int(umask, 8))
        os.write(3, b"0")
        stage = ENTER
        os.chdir(cwd)
        stage = CLOSE
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}"):
                os.set_inheritable(int(name), False)
        if not os.read(5, 1):
            return 0
        stage, failure = _exec_first(shell, files, argv)
    except OSError as error:
        failure = error.errno or errno.EIO
    os.write(4, struct.pack("=qq", stage, -failure))
    return failure


if __name__ == "__main__":
    main()
    os._exit(127)
