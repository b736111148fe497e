"""Plans and simulations as pictures."""
