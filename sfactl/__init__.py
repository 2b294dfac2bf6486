"""sfactl: the command-line client of sfad.

    __main__ ─▶ app (typer) ─ values ─▶ commands/VERB ─▶ connection ─ frames ─▶ sfad

The command line:

`__main__`          carries a command line out, and turns errors into exit codes
`app`               the typer application: finds the verb, loads its module, and shows help and
                    errors
`verbs`             the verbs, their aliases and their lines in the help
`commands`          one module for each verb
`options`           the options and arguments that verbs share, and the values of their texts
`spreading`         options that several verbs have, as the fields of a struct
`spawn_options`     the options of `spawn` and `run`, and their `Spawn` message
`session_options`   the options of `session delegate` and `session spawn`
`usage_options`     the options of `report`, `reserve` and `settle`
`selection`         the runs that a command line names or filters
`default_limits`    the limits of a run without options, for the help
`shell_completion`  the words that a shell completes
`completion_scripts`  the scripts of the shells, and what they exchange with `sfactl`
`bounded`           a bound on the time of what has none
`environment`       defaults and claims from the environment
`inside`            whether this process is inside a run
`reader`            ends what follows when nothing reads the output any more
`entry`             what a program of this package begins and ends with
`whole_file`        writes a file whole or not at all
`exits`             exit codes, and the errors that end the program with one of them

Connections:

`connection`        the connection to the daemon: handshake, requests, descriptors, reconnecting
`trust`             whether to trust the process at the other end
`start_daemon`      connects, and starts a daemon if none is running: by systemd or by fork
`history`           connects, or reads the ledger if no daemon is running
`sessions`          what `sfactl session` and `sfactl mcp` do
`fleet`             connections on which the daemon answers for its fleet, and who has not answered
`fleet_run`         output of runs on other nodes; `run --fleet`
`features`          which features this sfad has
`landing`           the work of ended runs in worktrees: what is there, and how it lands
`pruning`           removes worktrees of ended runs
`pruned`            what that has done
`shipping`          directories that are sent with runs, and changes that are brought back
`client`            the public API for authors of agents
`top`               the full-screen view of runs
`web`               the console, in a browser
`mcp`               the MCP server, and how programs are told of it
`otel`              the exporter of spans

A run in the foreground:

`foreground`        a run that this process stands for: output, exit code, what signals do
`progress`          its progress lines on stderr
`in_flight`         several requests on one connection, repeated after a death of the daemon; one
                    poll over all that a run tells
`terminal`          pseudo-terminals between the user's terminal and a run

Shims:

`shim`              stands in for an agent program; outside any run, becomes it
`shimmed_run`       inside a run, starts the program as a child run and ends as that ends
`own_server`        child runs in place of what a program would hand to a server of its own
`real_program`      the program that a shim stands in for

Output:

`output`            JSON, notes, and texts for figures, times and the state of a run
`limits`            limits on the command line, and as they are shown
`table`             tables
`lines`             the runs that have continued each other's session
`unlike_here`       what a live run has from the kernel that this process has not
`waiting`           what is wrong with a live run, and what waits for a person
`growing`           the output of a run in pieces, for `top` and the console
`follower`          copies output files, or an agent's text, as they grow

See "Starting fast" in docs/architecture.md. Only `web` imports trio, and of sfad only
`sfad.protocol` and its version (`doctor` also `sfad.host.probe` and
`sfad.features.listed`; `diff`, `land`, `landing` and `pruning` `sfad.git` and
`sfad.features.worktrees`, `shipping` `sfad.features.fleet.files`, `web` `sfad.host.callers`).
"""
