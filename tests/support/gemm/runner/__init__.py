"""The timing program: times matrix products on one device, in this process, a fresh one or a container.

Needs torch and the standard library alone and imports nothing outside this folder, so that `bundle` can ship it as
one file. It judges values, never speed.
"""
