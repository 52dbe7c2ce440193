"""Weights of 8 and 4 bits: how they are rounded, how checkpoints store them, and how layers get them."""
