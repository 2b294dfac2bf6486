"""What the kernel offers, and Python or psutil does not.

`descriptors`    reserves the last descriptors of the process, and closes those that clients sent;
                 tells files on FUSE mounts
`displacement`   tells when files may have been moved, removed, replaced or hidden: inotify(7)
`process_events` has the kernel tell which processes execute a program, and when many were forked
`callers`        the user and the cgroup of a connection's other end
`sockets`        who has the two ends of a Unix socket, and who listens on a port
`time_namespace` how far the kernel shifts the clocks of this process
"""
