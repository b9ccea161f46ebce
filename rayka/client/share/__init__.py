"""Share consumers on actor handles: queues with leases, on the log (KIP-932)."""
