"""The trio shell around the core: events go in, commands are applied. It decides nothing.

`runtime`      feeds the machine and applies its commands
`live`         what the shell keeps of a live run: what was asked, descriptors, wall-clock times
`environment`  the environment a run gets
`stdin`        the pipe behind `--stdin`
`timers`       deadlines, one heap and one task
"""
