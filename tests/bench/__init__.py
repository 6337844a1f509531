"""Figures for this machine: `python -m tests.bench`. No test asserts a time."""
