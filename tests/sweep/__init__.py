"""Load on each build: cells of concurrent requests and prompt lengths."""
