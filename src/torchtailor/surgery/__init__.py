"""Cutting one library: plan, layout, headers, references, writing, and the proof."""
