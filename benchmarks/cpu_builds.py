"""Two builds of torch on this CPU, side by side: `python benchmarks/cpu_builds.py OFFICIAL/bin/python OWN/bin/python`.

The builds are started and timed alternately, round by round. A ratio below 1 means that the second one is faster; `±`
is the combined noise of both.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchtailor.artifact.launch import Launch
from torchtailor.verification.measures import measure, ratios

SAYS = "import torch; print(torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=Path, help="a Python with the build to compare with")
    parser.add_argument("second", type=Path, help="a Python with the other build")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    builds = {"first": Launch(options.first.absolute()), "second": Launch(options.second.absolute())}
    for name, launch in builds.items():
        print(f"{name}: {launch.python}: {launch.run(['-c', SAYS]).output.strip()} threads")
    found = measure(builds, "cpu", cold=0, warm=options.rounds, throughput=options.rounds)
    print("\n| what | first | second | ratio |\n|---|---|---|---|")
    for group in ("warm", "throughput"):
        for ratio in ratios(getattr(found["first"], group), getattr(found["second"], group)):
            if "memory" in ratio.name:
                shown = [f"{size / 1e6:,.0f} MB" for size in (ratio.stock, ratio.tailored)]
            elif group == "warm":
                shown = [f"{seconds:.2f}" for seconds in (ratio.stock, ratio.tailored)]
            else:
                shown = [f"{seconds * 1e6:,.1f} us" for seconds in (ratio.stock, ratio.tailored)]
            print(f"| {ratio.name} | {shown[0]} | {shown[1]} | {ratio.value:.2f} ± {ratio.noise:.2f} |")


if __name__ == "__main__":
    main()
