"""Performance: measured here, never asserted as wall-clock time in a test."""
