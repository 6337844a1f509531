"""The handlers of the fold, one module per part of a run; `stillrun.reducers` puts them together.

Pure: no clock, no ids made, no IO; nothing raises on a stored event.
"""
