"""HTTP in, one call, HTTP out: routes parse and render, decisions live in the use cases."""
