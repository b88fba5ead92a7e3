"""The workshop the suites share. Imports quantkit, never a suite."""
