"""Encoding and decoding of requests and responses."""
