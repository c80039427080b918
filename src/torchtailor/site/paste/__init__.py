"""What a pasted text, or the browser itself, says about a machine."""

from torchtailor.site.paste.browser import browser_gpu
from torchtailor.site.paste.understand import Understood, understand

__all__ = ["Understood", "browser_gpu", "understand"]
