"""Watching what was started.

`reactor`      one epoll for everything that is waited for, and everything that is tried again
`mains`        main processes: what their trampolines report, and how they end
`reaper`       reaps the orphans that were reparented to the daemon
`owed_events`  reports that a run is empty or stands still
"""
