"""The full-screen view of runs: `sfactl top`. Only `sfactl.commands.top` imports what needs
Textual, which takes half a second.

`table`     the runs that the daemon has told of, as a tree: sorted, filtered, folded, and ranked by
            how much each needs a person
`cells`     the lines of the screen: columns, bars of limits
`run_tree`  the tree on the screen: cursor, mouse, and the table of keys
`pane`      the part below it: output, reasons, alerts, keys
`prompt`    questions to the person
`app`       the Textual application: what else is on the screen, and what keys do
`daemon`    threads that receive runs, send requests, and follow output
"""
