"""One file for each API or family of APIs."""
