"""Stillrun's agent service: performs the steps of runs; every fact is in the store's log.

A worker in your own process: `with Worker("http://127.0.0.1:8100", [agent]): ...`.
"""

from .registry import Registry
from .worker import Worker

__all__ = ["Registry", "Worker", "__version__"]

__version__ = "0.1.0"
