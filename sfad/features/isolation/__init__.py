"""Isolated runs: a command that bubblewrap starts in namespaces of its own (docs/isolation.md).

`feature`       the declaration
`part`          what of this a daemon does
`isolating`     whether a run is isolated, and what its sandbox is given
`doctor`        whether this machine can make sandboxes
`sandbox`       the command that starts another in a sandbox
`outside`       the program that becomes bubblewrap: it decides what the command can see and write
`view`          what the command sees, as bubblewrap's words
`visible`       which paths are always shown, hidden or writable
`programs`      where programs are outside of the system's directories
`kernel`        system calls that Python does not have, and the seccomp filter
`forwarder`     the way from a network of its own to the gateway

The last six are executed by a bare interpreter, once for each start, and import only the standard
library.
"""
