"""What this machine is, and what it lends to the daemon.

`variables`     the part of an environment that a hook keeps
`audience`       whom the daemon serves: its owner and root, or every user
`clock`          the daemon's clocks, and deadlines that call back
`displacement`   tells when files may have been moved, removed, replaced or hidden
`inotify`        inotify(7), which Python does not have
`descriptors`    reserves the last descriptors of the process
`closing`        closes the descriptors that clients sent
`fuse`           whether a file is on a FUSE mount of another user
`loop_turns`     counts the turns of the trio loop, and calls back at the end of one
`logout`         whether a logout ends this daemon
`damage`         what is damaged in the state directory: how that shows, where it is kept, and what is told of it
`private_files`  the daemon's own names in directories that its agents can write to
`process_events` has the kernel tell which processes execute a program, and when many were forked
`bubblewrap`     whether bubblewrap is there, and may make namespaces
`probe`          what the kernel and the session offer, for `sfactl doctor`
`headroom`       room on the disk, and a priority over the runs, that are kept for the daemon
`secrecy`        keeps the process's memory and environment from others
`socket_file`    the listening socket, in a directory where no other user can replace it
`state_dir`      the state directory and its locks
`systemd`        the protocol of sd_notify(3) and the file descriptor store
`tasks`          tasks beside the loop, and calls in threads
"""
