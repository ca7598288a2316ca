"""The paper's synthetic experiment (Section 3.1): images with a known ceiling."""
