"""PMDN: its update, its gradient and its kernels."""
