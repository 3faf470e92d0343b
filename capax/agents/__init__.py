"""Learners under Algorithm 1, one file each."""
