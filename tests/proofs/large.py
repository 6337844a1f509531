"""How much the proofs of the storage engine try: some in every run, all by

    STORAGE_PROOFS=full python -m pytest tests/proofs

A seeded sample prints its seed; `STORAGE_SEED=7` draws another."""

from __future__ import annotations

import os

FULL = os.environ.get("STORAGE_PROOFS") == "full"
SEED = int(os.environ.get("STORAGE_SEED", "1"))
KILLS = int(os.environ.get("STORAGE_KILLS", "10000" if FULL else "500"))
FUZZ_S = float(os.environ.get("STORAGE_FUZZ_S", "3600" if FULL else "60"))
LIVES = int(os.environ.get("STORAGE_LIVES", "3000" if FULL else "30"))
