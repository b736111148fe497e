"""What memory a chip has."""
