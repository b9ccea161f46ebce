"""The shell of coordinators: runs a core on a replicated partition."""
