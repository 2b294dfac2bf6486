"""Watching what was started.

`reactor`      one epoll for everything that is waited for, and everything that is tried again
`mains`        main processes: what their trampolines report, how they end, and when a run is empty or stands still
`reaper`       reaps the orphans that were reparented to the daemon
"""
