"""Import a Hugging Face config.json as a ModelSpec, and say what was assumed."""

from lrkv_plan.huggingface.convert import import_config

__all__ = ["import_config"]
