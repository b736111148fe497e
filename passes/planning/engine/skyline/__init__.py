"""The skyline greedy on many blocks, and the order in which it takes them."""
