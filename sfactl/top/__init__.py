"""The full-screen view of runs: `sfactl top`. Only `app`, `screen` and `web` import Textual, which takes half a second.

`table`    the runs that the daemon has told of, as a tree: sorted, filtered, folded
`ranking`  how much a run needs a person, and the words that say why
`cells`    what is shown of a run: columns, bars of limits
`prompt`   the line in which a person types
`feed`     a thread that receives runs from the daemon, and comes back when the daemon does
`errands`  requests to the daemon that a key asks for, each in a thread
`tail`     a thread that follows the output of one run
`keys`     what each key does
`cursor`   which line of the tree is chosen, and which part of it is seen
`pane`     the lines below the tree: output, reasons, alerts, help
`frame`    draws lines from all of these
`screen`   the one widget: shows the frame, and takes keys and mouse
`app`      the Textual application
`web`      the same in a browser
`connection_owner`  asks the kernel which user has a connection
"""
