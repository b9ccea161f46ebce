"""The controller's actor, its metadata log, and how others call and follow it."""
