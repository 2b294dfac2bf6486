"""Isolated runs: a command that bubblewrap starts in namespaces of its own (docs/isolation.md).

`sandbox`       what the daemon knows of an isolated run, and the command that starts it
`outside`       the program that becomes bubblewrap: it decides what the command can see and write
`view`          what the command sees, as bubblewrap's words
`visible`       which paths are always shown, hidden or writable
`programs`      where programs are outside of the system's directories
`kernel`        system calls that Python does not have, and the seccomp filter
`forwarder`     the way from a network of its own to the gateway

All but `sandbox` are executed by a bare interpreter, once for each start, and import only the
standard library.
"""
