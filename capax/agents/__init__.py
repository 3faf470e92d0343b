"""Learners under Algorithm 1: `pets`, `planet`, `tabular`, `calibrated`, `policy_gradient/`, and what several of them share."""
