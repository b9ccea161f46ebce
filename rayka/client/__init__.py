"""Python clients on actor handles."""
