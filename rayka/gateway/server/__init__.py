"""Sockets: listeners, connections, requests on their way, limits."""
