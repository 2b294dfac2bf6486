"""Tests of runs without a process."""
