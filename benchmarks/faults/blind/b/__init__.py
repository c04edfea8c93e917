"""Blind cases."""
