"""The verbs. Each module has `PARAMETERS`, and `main(...)`, which returns the exit code.

`agents`      list the registered agents
`approve`     approve an increase of a limit
`completion`  print a shell's completion script
`config`      show the settings, or the schema of --limits
`demo`        show a daemon at work
`deny`        deny an increase of a limit
`doctor`      check the machine
`help`        show the help
`info`        show everything about runs
`limit`       change limits of live runs
`list`        list runs
`logs`        print or follow output
`pause`       freeze runs
`prune`       remove ended runs
`recommend`   suggest limits from past runs
`reload`      make the daemon read its config
`report`      report what a run has used
`reserve`     reserve before a call to a model
`result`      print a final answer for a model
`resume`      thaw runs
`run`         start a run in the foreground
`send`        write to a run's stdin
`settle`      settle a reservation
`spawn`       start a run
`status`      show the daemon
`stop`        stop runs
`summary`     report how the runs of a night ended
`tree`        show runs as a tree
`wait`        wait for runs to end
`why`         say why a run ended or what bounds it
"""
