"""Alerts (docs/hooks.md#alerts): what an operator is told without asking, once when it begins and
once when it is over.

`feature`  the declaration
`measures` one alert: raised, held, cleared; and what is watched of all runs together
`watching` looks after an event at what it has changed: the half in the core
`saved`    what the next daemon must know
`showing`  how alerts that are raised are shown
`part`     what of this a daemon does
"""
