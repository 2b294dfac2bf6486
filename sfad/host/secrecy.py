"""Keeps what this process knows from other processes of its user: its environment and memory may
have keys of providers."""

import ctypes
import os
import pwd

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_NOGROUP = 65534
"""The group of a user without an entry in the user database."""


def hide_memory() -> None:
    """Have the kernel refuse /proc/PID/environ, /proc/PID/mem, /proc/PID/fd and ptrace(2) to all
    but root.

    prctl(2): the files in /proc/PID belong to root then, and no core is dumped. execve(2) undoes
    it, so what this process executes is as open as usual."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def become_user(uid: int) -> None:
    """Give up root for good: all threads become this user, with its groups, without capabilities,
    and gain no rights by execve(2). The user's other processes can signal this one, but not look
    into it. Raises `OSError`.

    What is imported or executed after that must be readable for the user, and the installation may
    not be."""
    try:
        entry = pwd.getpwuid(uid)
        gid, groups = entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid)
    except KeyError:
        gid, groups = _NOGROUP, []
    os.setgroups(groups)
    # prlimit(2) changes nothing of a process that has another group than the caller
    os.setresgid(gid, gid, _NOGROUP)
    # from 0 to others, the kernel drops all capabilities (capabilities(7))
    os.setresuid(uid, uid, uid)
    if ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError("PR_SET_NO_NEW_PRIVS is refused")
    hide_memory()  # again: a change of the user resets it to fs.suid_dumpable (prctl(2))
