"""Run folders: what is written, and when."""
