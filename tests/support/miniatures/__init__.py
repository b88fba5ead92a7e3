"""Servers and writers with one named defect each, for the judge to catch."""
