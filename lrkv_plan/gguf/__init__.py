"""GGUF files as models: what their headers say of layers, cache and weights, without a tensor."""
