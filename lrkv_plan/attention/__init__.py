"""Attention designs as data: cached tensors, weight matrices and decode work per layer."""
