"""Features: what sfad does beside admitting, containing, bounding and stopping runs.

Each is a folder that can be deleted, with its line in `listed` and its file or folder in
`sfactl/commands/`. The heart knows that list and the moments of `sfad.feature` and
`daemon.loop.seam`, and nothing of what is in a folder. A feature may use all of the heart, and no
other feature. The client may import its `messages`, and of `worktrees` what looks at them.
CONTRIBUTING.md has an exercise.

`listed` which there are
"""
