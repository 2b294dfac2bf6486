"""An agent that tries to get out of its sandbox. Plain Python: `python escaping.py TARGETS`, where
TARGETS is JSON.

It prints JSON: for each attack true if it succeeded, else why not. An attack changes nothing, or
undoes what it has changed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

TARGET: dict[str, Any] = {}
ATTACKS: dict[str, Callable[[], object]] = {}
X86 = platform.machine() == "x86_64"
_libc = ctypes.CDLL(None, use_errno=True)


def attack(function: Callable[[], object]) -> Callable[[], object]:
    """Register an attack: it succeeds if it returns what is not false and raises nothing."""
    ATTACKS[function.__name__] = function
    return function


def call(name: str, *arguments: object) -> int:
    """Call the C library. Raises `OSError`."""
    result: int = getattr(_libc, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def system_call(x86: int, generic: int, *arguments: object) -> int:
    """Call the kernel. Raises `OSError`."""
    numbers = [
        ctypes.c_long(each) if isinstance(each, int) else each
        for each in (x86 if X86 else generic, *arguments)
    ]
    return call("syscall", *numbers)


def descriptor(number: int) -> bool:
    os.close(number)
    return True


# ---- other processes


@attack
def signal_the_daemon() -> object:
    os.kill(TARGET["daemon"], 0)
    return True


@attack
def signal_another_run() -> object:
    os.kill(TARGET["victim"], signal.SIGCONT)
    return True


@attack
def signal_by_descriptor() -> object:
    return descriptor(os.pidfd_open(TARGET["victim"]))


@attack
def signal_by_owner_of_a_socket() -> object:
    with socket.socket() as one:
        fcntl.fcntl(one, fcntl.F_SETOWN, TARGET["victim"])
        return fcntl.fcntl(one, fcntl.F_GETOWN) == TARGET["victim"]


@attack
def trace() -> object:
    call("ptrace", 0x4206, TARGET["victim"], 0, 0)
    with suppress(OSError):
        call("ptrace", 17, TARGET["victim"], 0, 0)
    return True


@attack
def read_memory_by_call() -> object:
    buffer = ctypes.create_string_buffer(8)
    here, there = (struct.pack("=QQ", address, 8) for address in (ctypes.addressof(buffer), 4096))
    try:
        return system_call(310, 270, TARGET["victim"], here, 1, there, 1, 0)
    except OSError as error:
        if error.errno == errno.EFAULT:  # it may, and there is nothing at that address
            return True
        raise


@attack
def take_a_descriptor() -> object:
    pidfd = os.pidfd_open(TARGET["victim"])
    return descriptor(system_call(438, 438, pidfd, 1, 0)) and descriptor(pidfd)


@attack
def read_memory() -> object:
    return descriptor(os.open(f"/proc/{TARGET['victim']}/mem", os.O_RDONLY))


@attack
def read_environment() -> object:
    return TARGET["marker"].encode() in Path(f"/proc/{TARGET['victim']}/environ").read_bytes()


@attack
def list_descriptors_of_the_daemon() -> object:
    return os.listdir(f"/proc/{TARGET['daemon']}/fd")


@attack
def see_another_run() -> object:
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if (
                int(name) != os.getpid()
                and TARGET["marker"].encode() in Path(f"/proc/{name}/environ").read_bytes()
            ):
                return True
    return False


@attack
def bind_to_a_cpu() -> object:
    os.sched_setaffinity(TARGET["victim"], os.sched_getaffinity(TARGET["victim"]))
    return True


@attack
def slow_down() -> object:
    os.setpriority(
        os.PRIO_PROCESS, TARGET["victim"], os.getpriority(os.PRIO_PROCESS, TARGET["victim"])
    )
    return True


@attack
def change_limits() -> object:
    resource.prlimit(
        TARGET["victim"],
        resource.RLIMIT_CORE,
        resource.prlimit(TARGET["victim"], resource.RLIMIT_CORE),
    )
    return True


@attack
def take_a_descriptor_of_the_daemon_by_its_socket() -> object:
    """SO_PEERPIDFD tells the pidfd of a process that has no number in this sandbox."""
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(TARGET["socket"])
        (pidfd,) = struct.unpack("=i", one.getsockopt(socket.SOL_SOCKET, 77, 4))
        return descriptor(system_call(438, 438, pidfd, 0, 0)) and descriptor(pidfd)


@attack
def signal_the_daemon_by_its_socket() -> object:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(TARGET["socket"])
        (pidfd,) = struct.unpack("=i", one.getsockopt(socket.SOL_SOCKET, 77, 4))
        signal.pidfd_send_signal(pidfd, 0)
        return descriptor(pidfd)


@attack
def use_descriptors_of_the_sandbox() -> object:
    """What bubblewrap, or what starts it, has left open to the command or to the first process."""
    found = {
        link: os.readlink(link)
        for one in ("self", "1")
        for link in map(str, Path(f"/proc/{one}/fd").iterdir())
        if os.path.lexists(link)
    }
    return [
        link
        for link, where in found.items()
        if where.startswith("/") and not where.startswith(("/dev/", TARGET["state"], "/proc/"))
    ]


@attack
def use_a_process_without_filter() -> object:
    processes = [name for name in os.listdir("/proc") if name.isdigit()]
    return [
        name for name in processes if "Seccomp:\t2" not in Path(f"/proc/{name}/status").read_text()
    ]


@attack
def call_by_the_older_interface() -> object:
    """`int 0x80`, whose numbers are others."""
    if not X86:
        return False
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # push rbx; mov eax, 20; int 0x80; pop rbx; ret
    code.write(bytes.fromhex("53b814000000cd805bc3"))
    return (
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
        == os.getpid()
    )


@attack
def list_mounts_of_the_machine() -> object:
    found = ctypes.create_string_buffer(8 * 256)
    request = struct.pack("=IIQQQ", 32, 0, 0xFFFFFFFFFFFFFFFF, 0, TARGET["mounts"])
    return system_call(458, 458, request, found, 256, 0) > 0


@attack
def compare_with() -> object:
    return system_call(312, 272, os.getpid(), TARGET["victim"], 1, 0, 0) >= 0


@attack
def share_memory_of_a_key() -> object:
    return call("shmget", TARGET["shared"], 0, 0) >= 0


# ---- files


@attack
def list_the_state() -> object:
    return "ledger.db" in os.listdir(TARGET["state"])


@attack
def list_the_state_by_another_root() -> object:
    return "ledger.db" in os.listdir(f"/proc/1/root{TARGET['state']}")


@attack
def read_the_ledger() -> object:
    return descriptor(os.open(f"{TARGET['state']}/ledger.db", os.O_RDONLY))


@attack
def write_the_spool() -> object:
    return descriptor(os.open(f"{TARGET['state']}/spool/runs", os.O_WRONLY))


@attack
def read_output_of_another_run() -> object:
    return TARGET["marker"] in Path(TARGET["output"]).read_text()


@attack
def watch_output_of_another_run() -> object:
    watcher = call("inotify_init1", 0)
    return call("inotify_add_watch", watcher, TARGET["output"].encode(), 2) and descriptor(watcher)


@attack
def remove_the_socket() -> object:
    os.rename(TARGET["socket"], TARGET["socket"] + "x")
    os.rename(TARGET["socket"] + "x", TARGET["socket"])
    return True


@attack
def read_a_secret() -> object:
    return Path(TARGET["secret"]).read_text()


@attack
def move_secrets_into_view() -> object:
    directory = os.path.dirname(TARGET["secret"])
    os.rename(directory, directory + "-moved")
    os.rename(directory + "-moved", directory)
    return True


@attack
def link_a_secret() -> object:
    with tempfile.TemporaryDirectory(dir=".") as here:
        os.link(TARGET["secret"], f"{here}/link")
        return True


@attack
def open_a_secret_by_handle() -> object:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    system_call(303, 264, -100, TARGET["secret"].encode(), handle, ctypes.byref(mount), 0)
    at = os.open("/", os.O_RDONLY)
    return descriptor(system_call(304, 265, at, handle, os.O_RDONLY)) and descriptor(at)


@attack
def write_the_home() -> object:
    return descriptor(os.open(f"{TARGET['home']}/notes", os.O_WRONLY))


@attack
def change_a_mode() -> object:
    os.chmod(f"{TARGET['home']}/notes", 0o600)
    return True


@attack
def read_any_secret() -> object:
    return [path for path in TARGET["secrets"] if os.path.exists(path)]


@attack
def lease_a_file_of_the_machine() -> object:
    """A process that writes to it then waits 45 seconds."""
    with open(TARGET["own_file"]) as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


@attack
def write_system_files() -> object:
    with tempfile.TemporaryFile(dir="/usr"):
        return True


@attack
def write_the_root() -> object:
    with tempfile.TemporaryFile(dir="/"):
        return True


@attack
def change_settings_in_proc() -> object:
    found = []
    # a process may write to those of its own, and all users to those of /proc/pressure, which set
    # nothing
    top = {name for name in os.listdir("/proc") if not name.isdigit()} - {
        "self",
        "thread-self",
        "pressure",
    }
    for place in (Path("/proc", name) for name in top):
        for path in (path for path in (place, *place.rglob("*")) if path.is_file()):
            with suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                found.append(str(path))
    return found


@attack
def read_the_shadow_file() -> object:
    return Path("/etc/shadow").read_text()


@attack
def see_others_in_tmp() -> object:
    return os.path.exists(TARGET["temporary"])


@attack
def find_devices() -> object:
    return any(
        os.path.exists(f"/dev/{name}") for name in ("mem", "kmsg", "vda", "sda", "nvme0n1", "loop0")
    )


@attack
def make_a_device() -> object:
    with tempfile.TemporaryDirectory(dir=".") as here:
        os.mknod(f"{here}/null", 0o600 | 0o020000, os.makedev(1, 1))
        return descriptor(os.open(f"{here}/null", os.O_RDWR))


@attack
def set_the_core_pattern() -> object:
    return descriptor(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))


@attack
def press_sysrq() -> object:
    return descriptor(os.open("/proc/sysrq-trigger", os.O_WRONLY))


@attack
def read_the_kernels_memory() -> object:
    return descriptor(os.open("/proc/kcore", os.O_RDONLY))


@attack
def write_below_sys() -> object:
    for directory, _, names in os.walk("/sys/kernel/mm"):
        for name in names:
            with suppress(OSError):
                return descriptor(os.open(f"{directory}/{name}", os.O_WRONLY))
    return False


@attack
def see_cgroups_of_others() -> object:
    return os.path.exists(f"{TARGET['cgroup']}/cgroup.procs")


@attack
def leave_its_cgroup() -> object:
    mounts = [
        line.split()[4]
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if " - cgroup2 " in line
    ]
    return any(descriptor(os.open(f"{mount}/cgroup.procs", os.O_WRONLY)) for mount in mounts)


# ---- namespaces and privileges


@attack
def mount() -> object:
    with tempfile.TemporaryDirectory(dir=".") as here:
        call("mount", b"none", here.encode(), b"tmpfs", 0, None)
        call("umount2", here.encode(), 2)
        return True


@attack
def make_a_detached_mount() -> object:
    return descriptor(system_call(430, 430, b"tmpfs", 0))


@attack
def clone_a_mount_with_attributes() -> object:
    return descriptor(system_call(467, 467, -100, b"/", 1, struct.pack("=4Q", 0, 0, 0, 0), 32))


@attack
def call_what_is_newer_than_the_filter() -> object:
    try:
        return system_call(999, 999) is not None
    except OSError as error:
        return error.errno != errno.ENOSYS


@attack
def uncover() -> object:
    call("umount2", os.path.dirname(TARGET["secret"]).encode(), 2)
    return True


def in_child(do: Callable[[], object]) -> bool:
    """Whether a child of this process succeeds with what cannot be undone."""
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            os._exit(0 if do() is not False else 1)
        os._exit(1)
    return reaped(pid) == 0


def reaped(pid: int) -> int:
    """Return the exit code of a child."""
    result = os.waitid(os.P_PID, pid, os.WEXITED)
    return result.si_status if result is not None else -1


@attack
def make_a_user_namespace() -> object:
    return in_child(lambda: call("unshare", 0x10000000))


@attack
def make_a_mount_namespace() -> object:
    return in_child(lambda: call("unshare", 0x00020000))


@attack
def clone_into_a_user_namespace() -> object:
    pid = system_call(56, 220, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if not pid:
        os._exit(0)
    return reaped(pid) == 0


@attack
def clone_by_the_newer_call() -> object:
    pid = system_call(
        435, 435, struct.pack("=8Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), 64
    )
    if not pid:
        os._exit(0)
    return reaped(pid) == 0


@attack
def enter_a_namespace() -> object:
    with open("/proc/1/ns/net") as file:
        return in_child(lambda: call("setns", file.fileno(), 0))


@attack
def change_the_root() -> object:
    return in_child(lambda: os.chroot("."))


@attack
def become_another_user() -> object:
    return in_child(lambda: os.setuid(12345))


@attack
def leave_groups() -> object:
    return in_child(lambda: os.setgroups([0, 12345]))


@attack
def gain_by_setuid_programs() -> object:
    return "NoNewPrivs:\t0" in Path("/proc/self/status").read_text()


@attack
def rename_the_machine() -> object:
    return in_child(lambda: socket.sethostname(socket.gethostname()))


@attack
def raise_a_hard_limit() -> object:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return in_child(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1)))


@attack
def be_more_important() -> object:
    return in_child(lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))


# ---- the kernel


@attack
def read_keys() -> object:
    return system_call(250, 219, 0, -4, 1) >= 0


@attack
def add_a_key() -> object:
    return system_call(248, 217, b"user", b"sfad:test", b"x", 1, -3) >= 0


@attack
def load_bpf() -> object:
    return descriptor(system_call(321, 280, 0, struct.pack("=IIII", 2, 4, 4, 1) + bytes(96), 112))


@attack
def count_events() -> object:
    return descriptor(
        system_call(298, 241, struct.pack("=IIQ", 1, 128, 0) + bytes(112), 0, -1, -1, 0)
    )


@attack
def fault_in_userspace() -> object:
    return descriptor(system_call(323, 282, 1))


@attack
def set_up_io_uring() -> object:
    return descriptor(system_call(425, 425, 2, ctypes.create_string_buffer(120)))


@attack
def read_the_kernels_log() -> object:
    return system_call(103, 116, 3, ctypes.create_string_buffer(64), 64) >= 0


@attack
def type_into_a_terminal() -> object:
    near, far = os.openpty()
    try:
        fcntl.ioctl(far, 0x5412, b"x")
    except PermissionError as error:
        # the filter says EPERM, and a kernel that forbids it for all EIO
        raise OSError(errno.EPERM, "refused by the filter") from error
    finally:
        os.close(near)
        os.close(far)
    return True


# ---- sockets


def reach(family: int, address: Any, kind: int = socket.SOCK_STREAM) -> bool:
    with socket.socket(family, kind) as one:
        one.settimeout(5)
        one.connect(address)
        return True


@attack
def connect_to_a_socket_in_tmp() -> object:
    return reach(socket.AF_UNIX, TARGET["listener"])


@attack
def connect_to_a_socket_in_the_home() -> object:
    return reach(socket.AF_UNIX, TARGET["home_listener"])


@attack
def connect_to_a_socket_bound_by_a_relative_path() -> object:
    return reach(socket.AF_UNIX, TARGET["relative_listener"])


@attack
def connect_to_a_renamed_socket() -> object:
    return reach(socket.AF_UNIX, TARGET["renamed_listener"])


@attack
def connect_to_a_socket_bound_through_a_descriptor() -> object:
    return reach(socket.AF_UNIX, TARGET["descriptor_listener"])


@attack
def connect_to_a_link_to_a_socket() -> object:
    return reach(socket.AF_UNIX, TARGET["linked_listener"])


@attack
def connect_to_a_socket_with_a_newline() -> object:
    return reach(socket.AF_UNIX, TARGET["newline_listener"])


@attack
def connect_to_an_abstract_socket() -> object:
    return reach(socket.AF_UNIX, "\0" + TARGET["abstract"])


@attack
def connect_to_the_machines_services() -> object:
    return any(
        os.path.exists(path)
        for path in (
            "/run/dbus",
            "/run/systemd",
            "/run/lock",
            "/run/utmp",
            "/run/user",
            "/run/sfad",
        )
    )


@attack
def open_vsock() -> object:
    return descriptor(socket.socket(40, socket.SOCK_STREAM).detach())


@attack
def open_a_packet_socket() -> object:
    return descriptor(socket.socket(socket.AF_PACKET, socket.SOCK_RAW).detach())


@attack
def open_a_raw_socket() -> object:
    return descriptor(socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).detach())


@attack
def open_the_kernels_crypto() -> object:
    return descriptor(socket.socket(38, socket.SOCK_SEQPACKET).detach())


@attack
def listen_to_devices() -> object:
    return descriptor(socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15).detach())


@attack
def diagnose_sockets() -> object:
    return descriptor(socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 4).detach())


# ---- the network, which only =net takes away


@attack
def connect_to_loopback() -> object:
    return reach(socket.AF_INET, ("127.0.0.1", TARGET["port"]))


@attack
def send_a_datagram() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", ("127.0.0.1", TARGET["udp_port"]))
    return TARGET["network"] == network()


@attack
def see_interfaces() -> object:
    return TARGET["network"] == network() or len(socket.if_nameindex()) > 1


@attack
def see_connections_of_others() -> object:
    return f":{TARGET['port']:04X} " in Path("/proc/net/tcp").read_text()


def network() -> str:
    return os.readlink("/proc/self/ns/net")


@attack
def connect_to_metadata() -> object:
    try:
        return reach(socket.AF_INET, ("169.254.169.254", 80))
    except TimeoutError:
        return TARGET["network"] == network()


def main() -> None:
    TARGET.update(json.loads(sys.argv[1]))
    found: dict[str, object] = {}
    for name, function in ATTACKS.items():
        try:
            found[name] = True if function() else "it had no effect"
        except Exception as error:  # noqa: BLE001 - the test is told
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
