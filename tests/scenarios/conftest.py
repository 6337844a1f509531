"""The door of the contract tests, for stories that edit its files."""

from contract.conftest import door, open_door

__all__ = ["door", "open_door"]
