"""The windows of subscriptions (docs/plans.md): what agents leave of each to the person.

`feature` the declaration
`windows` one window, as it is heard of; an account with its windows
`barrier` which calls and roots wait for a reset, and which runs have used a window: the half in the
          core
`saved`   what is known of subscriptions, between ledger, spool and core
`showing` how they are shown
`part`    what of this a daemon does
"""
