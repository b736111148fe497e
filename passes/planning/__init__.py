"""Planners: plain data in, plain data out. Nothing here knows TVM."""
