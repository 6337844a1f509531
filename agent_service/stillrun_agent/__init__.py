"""Stillrun's agent service: performs the steps of runs; every fact is in the store's log."""

__version__ = "0.1.0"
