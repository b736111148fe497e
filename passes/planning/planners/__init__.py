"""The general planners, a file each."""
