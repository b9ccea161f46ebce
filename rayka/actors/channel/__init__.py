"""How a process reaches a partition's leader: in the same process, by the local channel, or by actor call."""
