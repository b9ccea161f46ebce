"""`rayka up`: the supervisor and the processes below it."""
