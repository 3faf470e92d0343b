"""The paper's experiments, one file each, with the paper's numbers for comparison."""
