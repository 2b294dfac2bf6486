"""What this machine is, and what it lends to the daemon.

`linux`          what the kernel offers, and Python or psutil does not
`clock`          the daemon's clocks, and deadlines that call back
`log`            the JSON log, and `limits.log`; lines to a file or descriptor, without waiting
`counts`         what has happened since the start, counted
`faults`         ends the process at a chosen effect, for the crash test
`http_connection` one connection of HTTP: requests in, replies out
`streams`        reads and writes of connections, cheaper than trio's
`files`          the daemon's own names in directories that its agents can write to, and what is
                 damaged there
`probe`          what the kernel, the session and bubblewrap offer, for `sfactl doctor`
`headroom`       room on the disk, and a priority over the runs, that are kept for the daemon
`secrecy`        keeps the process's memory and environment from others
`socket_file`    the listening socket, in a directory where no other user can replace it, and whom
                 the daemon serves
`state_dir`      the state directory and its locks
`installed`      the version that is installed in the place of the program that runs
`systemd`        sd_notify(3), the file descriptor store, and whether a logout ends this daemon
`tasks`          tasks beside the loop, calls in threads, and the turns of the trio loop
"""
