"""Load on a server: the client, its prompts, its figures, and when a cell of them is a number."""
