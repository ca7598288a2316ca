"""The paper, claim by claim."""
