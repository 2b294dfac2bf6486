"""Texts that people write and read.

`units`     durations, sizes, counts and money as people write them, and as they are shown
`destinations` hosts that a run may reach, as words
`sanitise`  an agent's bytes as text that a terminal and a model take for nothing but data
`redaction` what looks like a secret, hidden in texts
"""
