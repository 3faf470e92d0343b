"""The paper's experiments, one file each, with its numbers beside ours."""
