"""What a command line says: the options and arguments that verbs share, and what their texts mean.

`shared`            options and arguments of several verbs, and the values of their texts
`spreading`         options that several verbs have, as the fields of a struct
`spawn`             the options of `spawn` and `run`, and their `Spawn` message
`usage`             the options of `report`, `reserve` and `settle`
`selection`         the runs that a command line names or filters
`limits`            limits on the command line, and as they are shown
`default_limits`    the limits of a run without options, for the help
`completion`        the words that a shell completes
`completion_scripts`  the scripts of the shells, and what they exchange with `sfactl`
"""
