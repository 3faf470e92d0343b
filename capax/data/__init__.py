"""Replay buffers of transitions and images, their copies on a GPU, and logged data to begin with."""
