"""What this machine is, and what it lends to the daemon.

`background`     tasks beside the loop
`clock`          trio's clock as CLOCK_MONOTONIC, so that the next daemon can read this one's times
`closing`        closes descriptors that clients sent, in threads, because close(2) may wait
`descriptors`    reserves the last descriptors of the process
`disk_reserve`   room on the disk that is kept for the start of a daemon
`logout`         whether a logout ends this daemon
`priority`       schedules the daemon before its runs
`private_files`  the daemon's own names in directories that its agents can write to
`probe`          what the kernel and the session offer, for `sfactl doctor`
`socket_file`    the listening socket, in a directory where no other user can replace it
`state_dir`      the state directory and its locks
`systemd`        the protocol of sd_notify(3) and the file descriptor store
`tasks`          starts a task again that failed
`threads`        calls in threads, and an `OSError` where none can be started
`timers`         deadlines that call back
"""
