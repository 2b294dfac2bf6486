"""Isolated runs: a command that bubblewrap starts in namespaces of its own (docs/isolation.md).

`sandbox`       what the daemon knows of an isolated run, and the command that starts it
`outside`       the program that becomes bubblewrap: it decides what the command can see and write
`visible`       which paths are hidden, writable or read-only
`system_calls`  the seccomp filter
`kernel`        system calls that Python does not have
`forwarder`     the way from a network of its own to the gateway
`inside`        the command within a sandbox, as /proc outside tells it

All but `sandbox` and `inside` are executed by a bare interpreter, once for each start, and import only the standard library.
"""
