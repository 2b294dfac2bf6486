"""Everything at random, for minutes, against a daemon that is killed, renewed and starved. The pure core is the judge."""
