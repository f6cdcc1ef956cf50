"""Frozen, validated descriptions of models, hardware and attention designs."""
