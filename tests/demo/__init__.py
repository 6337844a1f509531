"""The demo: an agent dies in the middle of a booking, another goes on, there is one booking."""
