"""Converter."""
