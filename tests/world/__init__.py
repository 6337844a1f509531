"""The outside world of the demo and the tests: fares, seats, a booking desk, a mail box.

Always: every write and every lookup by key is in the ledger; what the world answers and how it
fails is a function of the run, the key and the number of the attempt, never of time; a known key is
applied once. It depends on no package of Stillrun, so that it can testify about Stillrun.

Run it with ``python -m world`` when ``tests/`` is on ``sys.path``."""
