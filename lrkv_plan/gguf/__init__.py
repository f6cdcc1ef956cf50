"""GGUF files as models: what their headers say of layers, cache and weights, without a tensor."""

from lrkv_plan.gguf.files import gguf_bytes, gguf_files, is_gguf
from lrkv_plan.gguf.model import import_gguf

__all__ = ["gguf_bytes", "gguf_files", "import_gguf", "is_gguf"]
