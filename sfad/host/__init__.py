"""What this machine is, and what it lends to the daemon.

`clock`          the daemon's clocks, and deadlines that call back
`time_namespace` how far the kernel shifts the clocks of this process
`log`            the JSON log, and `limits.log`; lines to a file or descriptor, without waiting
`metrics`        what has happened since the start, counted; each metric: its name, what it is, its
                 labels
`faults`         ends the process at a chosen effect, for the crash test
`displacement`   tells when files may have been moved, removed, replaced or hidden; inotify(7),
                 which Python does not have
`descriptors`    reserves the last descriptors of the process, and closes those that clients sent;
                 tells files on FUSE mounts
`files`          the daemon's own names in directories that its agents can write to, and what is
                 damaged there
`process_events` has the kernel tell which processes execute a program, and when many were forked
`probe`          what the kernel, the session and bubblewrap offer, for `sfactl doctor`
`callers`        the user and the cgroup of a connection's other end
`sockets`        who has the two ends of a Unix socket, and who listens on a port
`headroom`       room on the disk, and a priority over the runs, that are kept for the daemon
`secrecy`        keeps the process's memory and environment from others
`socket_file`    the listening socket, in a directory where no other user can replace it, and whom
                 the daemon serves
`state_dir`      the state directory and its locks
`systemd`        sd_notify(3), the file descriptor store, and whether a logout ends this daemon
`tasks`          tasks beside the loop, calls in threads, and the turns of the trio loop
"""
