"""Scripts that run inside an engine's image, with what is installed there; nothing imports them but tests."""
