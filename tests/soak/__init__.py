"""Random clients, for minutes, of a daemon that is killed, re-executed and short of resources. The
pure core is the judge."""
