"""Two blocks with flex attention under torch.compile: a hash of the result, and seconds since Python was started."""

import hashlib
import os
import time

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


class Block(torch.nn.Module):
    def __init__(self, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        qkv = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = flex_attention(*qkv, score_mod=lambda score, b, h, i, j: score + (i - j) * 0.01, block_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.after(x))))


torch.manual_seed(0)
blocks = torch.nn.ModuleList([Block() for _ in range(2)]).cuda().bfloat16()
mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 512, 512, device="cuda")


@torch.compile
def run(x):
    for block in blocks:
        x = block(x, mask)
    return x


with torch.inference_mode():
    made = run(torch.randn(2, 512, 512, device="cuda", dtype=torch.bfloat16)).float().cpu()
took = time.time() - float(os.environ["BEGAN"])
print(f"result {hashlib.sha256(made.numpy().tobytes()).hexdigest()[:16]} first {took:.1f} s")
