"""Measurements of quantkit itself, beside what people use instead.

Nothing in the package or the suites imports this; unit tests use `shaped` to make their checkpoints.
"""
