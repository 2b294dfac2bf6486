"""What this machine is and lends: systemd, paths, descriptors, priority, clocks and threads."""
