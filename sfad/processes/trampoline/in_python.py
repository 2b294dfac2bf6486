"""The trampoline in Python (see `executable`). Run as a file with -I -S; imports nothing of the
package."""

import ctypes
import errno
import os
import platform
import resource
import select
import signal
import struct
import sys

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_KEYCTL = {"x86_64": 250, "s390x": 280, "ppc64le": 271, "armv7l": 311, "armv8l": 311, "i686": 288}
"""The number of keyctl(2); 219 on aarch64, riscv64 and loongarch64."""
_JOIN_SESSION_KEYRING = 1
_CAPABILITY_VERSION_3 = 0x20080522
_HEAD = struct.Struct("=4I32Q")
_SEAL = b"."
ATTACH, ENTER, CLOSE, EXEC, INTERPRET, BECOME = 1, 2, 3, 4, 5, 6
_THE_COMMANDS = (errno.E2BIG, errno.EAGAIN, errno.ENOMEM, errno.ETXTBSY)


def _array(items: list[bytes]) -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * (len(items) + 1))(*items, None)


def _environment() -> "ctypes.Array[ctypes.c_char_p]":
    """Return the command's, which came sealed (`credentials.sealed`): this program is still root
    when the loader looks at it.

    It is read as execve(2) got it: `os.environ` drops entries without "=", and Python may add
    LC_CTYPE when it starts."""
    with open("/proc/self/environ", "rb") as file:
        return _array([item.removeprefix(_SEAL) for item in file.read().split(b"\0")[:-1]])


def _exec(path: bytes, argv: list[bytes], environment: "ctypes.Array[ctypes.c_char_p]") -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.execve(path, _array(argv), environment)
    return ctypes.get_errno()


def _exec_first(
    shell: bytes,
    files: list[bytes],
    argv: list[bytes],
    environment: "ctypes.Array[ctypes.c_char_p]",
) -> tuple[int, int]:
    verdict = errno.ENOENT
    for file in files:
        failure = _exec(file, argv, environment)
        if failure == errno.ENOEXEC:
            return INTERPRET, _exec(shell, [shell, file, *argv[1:]], environment)
        if failure not in (errno.ENOENT, errno.ENOTDIR):
            verdict = failure
        if failure in _THE_COMMANDS:
            break
    return (
        INTERPRET if verdict == errno.ENOENT and any(map(os.path.exists, files)) else EXEC
    ), verdict


def _become() -> None:
    """Become the user whose credentials come through the gate. Raises `OSError`."""
    uid, gid, no_new_privs, count, *limits = _HEAD.unpack(_read(_HEAD.size))
    os.setgroups(struct.unpack(f"={count}I", _read(4 * count)))
    for kind, pair in enumerate(zip(limits[::2], limits[1::2], strict=True)):
        soft, hard = (resource.RLIM_INFINITY if limit >= 1 << 63 else limit for limit in pair)
        try:
            resource.setrlimit(kind, (soft, hard))
        except ValueError as error:  # Python's word for EPERM
            raise PermissionError(errno.EPERM, str(error)) from error
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    header, nothing = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
    # a keyring that the kernel does not allow (EPERM, ENOSYS) cannot be used by the command either
    keyring = libc.syscall(_KEYCTL.get(platform.machine(), 219), _JOIN_SESSION_KEYRING, None)
    if keyring < 0 and ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        raise OSError(ctypes.get_errno(), "no session keyring")
    if libc.capset(header, nothing) or (
        no_new_privs and libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    ):
        raise OSError(ctypes.get_errno(), "cannot give privileges up")


def _read(size: int) -> bytes:
    content = b""
    while len(content) < size:
        more = os.read(5, size - len(content))
        if not more:
            raise OSError(errno.EPIPE, "the daemon ended")
        content += more
    return content


def _has_terminal() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpid()
    except OSError:  # not a terminal, or another session's
        return False


def _keep_company() -> None:
    """Let SIGTSTP (Ctrl-Z) stop the command, as it can in a shell.

    The kernel discards SIGTSTP in a process group in which no member has a parent in the same
    session and another group (setpgid(2): an orphaned process group), and the command's parent is
    the daemon. So two idle processes stay as long as the command: one in its group, and that one's
    parent in another group. Neither is the command's child: the command must not find children that
    it does not know."""
    command = os.getpid()
    joined, joining = os.pipe()
    child = os.fork()
    if child:
        os.close(joining)
        os.waitpid(child, 0)  # noqa: TID251 - this process reaps its own child, by pid
        # returns when both have closed the pipe: a Ctrl-Z before that would be discarded
        os.read(joined, 1)
        os.close(joined)
        return
    if not os.fork():
        _accompany(command)
    os._exit(0)


def _accompany(command: int) -> None:
    os.setpgid(0, 0)
    watch = os.pidfd_open(command)
    member = os.fork()
    if not member:
        for number in (signal.SIGINT, signal.SIGQUIT):  # from the keyboard
            signal.signal(number, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setpgid(0, command)
    os.closerange(0, watch)
    os.closerange(watch + 1, 1 << 16)
    if member:
        select.select([watch], [], [])
        os.kill(member, signal.SIGKILL)
        os._exit(0)
    while True:
        signal.pause()


def main() -> int:
    """Attach this process and become the command. Return only on failure, with the errno, or with 0
    at a shut gate."""
    shell, umask, cwd, *words = (os.fsencode(word) for word in sys.argv[1:])
    files, argv = words[: words.index(b"")], words[words.index(b"") + 1 :]
    stage = ATTACH
    # Python ignores two of these, which the command would inherit, and turns one into an exception
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.umask(int(umask, 8))
        os.write(3, b"0")
        stage = CLOSE
        environment = _environment()  # a process that has changed its user may not read it
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}"):
                os.set_inheritable(int(name), False)
        opened = os.read(5, 1)
        if not opened:
            return 0
        if opened == b"u":
            stage = BECOME
            _become()
        stage = ENTER
        os.chdir(cwd)
        if _has_terminal():
            _keep_company()
        stage, failure = _exec_first(shell, files, argv, environment)
    except OSError as error:
        failure = error.errno or errno.EIO
    os.write(4, struct.pack("=qq", stage, -failure))
    return failure


if __name__ == "__main__":
    main()
    os._exit(127)
