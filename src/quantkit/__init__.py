"""Quantizers for Gemma 4: every weight format from one QAT checkpoint, and the proof of what each did.

Import from the modules: `formats`, `convert`, `verify`. Nothing is re-exported here.
"""
