"""Programs that misbehave, in Python, because not every machine has a C compiler."""

ORPHANS = """
import os, sys, time
count, ignore = int(sys.argv[1]), "ignore" in sys.argv
if ignore:
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for number in range(count):
    if os.fork() == 0:
        if number % 2:
            os.setsid()
            if os.fork():
                os._exit(0)
            if number % 3 == 0:
                os.execve("/bin/sleep", ["sleep", "1000"], {})
        time.sleep(1000)
        os._exit(0)
print("ready", flush=True)
if "leave" not in sys.argv:
    time.sleep(1000)
"""
"""`COUNT [ignore] [leave]`: that many processes, half of them double-forked into sessions of their
own, some with an empty environment."""

HOPPERS = """
import os, sys, time
for number in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.environb.clear()
        while True:
            if os.fork():
                os._exit(0)
            os.setsid()
print("ready", flush=True)
time.sleep(1000)
"""
"""`COUNT`: lineages that fork, change session and exit, without pause."""

COUNTER = """
import os, sys
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while True:
    os.write(out, b".")
"""
"""`FILE`: grows it as fast as it can."""

STUBBORN = """
import signal, time, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(1000)
"""
"""Ignores what can be ignored."""

STOPS_ITSELF = """
import os, signal, sys

def handle(*_):
    with open(sys.argv[1], "a") as file:
        file.write(who + "\\n")
    os._exit(3)

signal.signal(signal.SIGTERM, handle)
who = "main" if os.fork() else "child"
while True:
    os.kill(os.getpid(), signal.SIGSTOP)
"""
"""`FILE`: a process and its child, which stand still like jobs of a shell (Ctrl-Z). Each writes who
it is when it handles SIGTERM."""

BOMB = """
import os, sys, time
most, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
made = failed = 0
print("ready", flush=True)
while made < most and time.monotonic() < until:
    try:
        child = os.fork()
    except BlockingIOError:
        failed += 1
        time.sleep(0.002)
        continue
    if child == 0:
        time.sleep(max(0, until - time.monotonic()))
        os._exit(0)
    made += 1
print("made", made, "failed", failed > 0, flush=True)
time.sleep(max(0, until - time.monotonic()))
"""
"""`MOST SECONDS`: so many processes as fast as it can. It bounds itself: RLIMIT_NPROC does not hold
for root."""

HOG = """
import sys, time
most, until = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
print("ready", flush=True)
held = []
while len(held) < most and time.monotonic() < until:
    held.append(b"x" * (1 << 20))
print("had", len(held), flush=True)
time.sleep(max(0, until - time.monotonic()))
"""
"""`MOST SECONDS`: so many MiB as fast as it can, and then it keeps them."""

IN_VFORK = """
import os, sys
# between vfork and exec the child opens a FIFO that no process writes to: until then this process
# waits, and cannot be stopped
action = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
os.posix_spawn("/bin/sleep", ["sleep", "1000"], {}, file_actions=[action])
"""
"""`FIFO`: it is in the middle of a vfork(2), and stays there."""

SHARERS = """
import os, sys, time
held = b"x" * (int(sys.argv[2]) << 20)
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(1000)
print("ready", flush=True)
time.sleep(1000)
"""
"""`COUNT MIB`: children that share so much memory with it."""
