"""Meters: recordings of real agents in `streams/`, and what an agent might print to break one."""
