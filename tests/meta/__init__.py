"""The judge is judged. May import everything; nothing imports it."""
