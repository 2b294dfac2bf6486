"""Terminals of runs, as a person sees them.

`keys`     what keys send: `y<Enter>`
`typing`   `sfactl send --keys`
`replay`   the screen of a run, from what it has written
`viewer`   the terminal of a run in that of the person
`saying`   an agent program says that it waits for a person
`printing` the output of a run with a terminal: its text, its screen, its bytes, its recording
"""
