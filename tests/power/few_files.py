"""A store that may have few open files: `python -m power.few_files`."""

from __future__ import annotations

import resource

import stillrun_store.__main__ as service

MAX_OPEN_FILES = 256

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_OPEN_FILES, MAX_OPEN_FILES))
    service.main()
