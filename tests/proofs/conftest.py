"""The proofs of the storage engine that take too long for a unit test."""

from unit.storage.conftest import open_engine, tmp_path

__all__ = ["open_engine", "tmp_path"]
