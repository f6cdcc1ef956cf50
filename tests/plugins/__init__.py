"""What another package would install."""
