"""store_service: durable runs behind HTTP, in plain files."""
