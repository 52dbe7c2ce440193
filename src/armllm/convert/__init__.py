"""Checkpoints made from checkpoints: calibrated, rounded or packed."""
