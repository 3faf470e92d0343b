"""Learners under Algorithm 1, one file each, beside what several of them share (`planned_common`, `starters`, `recent_cache`)."""
