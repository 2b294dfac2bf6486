"""sfactl: the command-line client of sfad.

    __main__ ─ verb ─▶ options.read ─ plain ─────▶ commands/VERB.main ─▶ client ─ frames ─▶ sfad
                            └─ anything else ─▶ app (typer: help, completion, usage errors) ─┘

`verbs`       every verb, its module and its line in the help
`options`     an option or argument as data; the reader of plain command lines
`app`         the same data as a typer application
`exits`       exit codes, and what each outcome maps to; the errors that end the program
`client`      the connection: handshake, calls, descriptors
`autostart`   a connection that may start a daemon; `starting` does it; `environment` tells whether we are inside a run
`request`     command line and environment → the `Spawn` message
`foreground`  a run that this process stands for: output, signals, exit code
`loop`        one poll over daemon, signals, files and terminals; `follow` reads output files as they grow
`terminal`    a pseudo-terminal between the user's and the run's
`output`      JSON, tables, times, notes

Typer costs 60 ms to import and its parser needs it whole, so the declarations in `options` are read twice: a reader of
forty lines takes the command lines that agents write in loops, and typer takes whatever is not plain. A test holds the
two to the same answers. No module here imports trio, and of sfad only `sfad.protocol` (`doctor` also `sfad.host.probe`).
"""
