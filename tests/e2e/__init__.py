"""The product as its users have it: a daemon process, `sfactl`, real agents, the kernel's word on
what is left."""
