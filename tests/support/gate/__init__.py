"""Baselines, and the verdict on a run: better, same, worse, or not to be compared."""
