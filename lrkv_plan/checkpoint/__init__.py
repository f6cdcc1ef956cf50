"""What checkpoint files say about themselves, without loading a tensor."""
