"""A node as a broker: its actors, their options and what a process knows of the cluster."""
