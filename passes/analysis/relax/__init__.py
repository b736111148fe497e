"""What the Relax functions of a module keep in memory, and when."""
