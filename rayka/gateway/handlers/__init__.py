"""Handlers: one small file for each family of APIs."""
