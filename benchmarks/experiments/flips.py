"""Measure how certainly a flipped bit is found, by where it occurs: the table of
docs/operations.md.

    python benchmarks/experiments/flips.py [--steps 200]

Three ranks train, and one random element is flipped in each step. A rank is found if it is named in
at least one step. "of one" is the share of flips that were seen: the probability that a single flip
in 200 steps is found. The first row injects nothing; all of its 100,000 or more hashes must be
equal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from harness.analysis.samples import bits
from harness.cases import Catalogue, Device, Settings, Site
from harness.features.nodes.checking import check_bits
from harness.launch.wire.messages import InjectedBitFlip, Place
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record.store import load_samples

SITE = Site(device=Device.CPU, backend="gloo", nodes=(3,))
#: The bits to flip by place: the lowest and the highest bit of the mantissa. For data that are only
#: copied, one bit is sufficient.
BITS = {Place.WEIGHT: (0, 22), Place.ACTIVATION: (0, 22), Place.GRADIENT: (0, 22)}
RANK = 1


def main(steps: int) -> int:
    """Print the table; return 1 if the affected rank was not found or another rank was named."""
    case, failed = Catalogue().normalise(SITE.case("ddp/decoder-nano")), False
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(Catalogue(), Settings(nodes=(3,), fabric=False), Path(folder), (), Progress()) as s,
    ):
        clean = check_bits(s, case, 3 * steps)
        print("| flip in | bit | of one | rank found | others named |\n|---|---|---|---|---|")
        print(f"| nothing | | | | {len(clean.wrong)} in {clean.compared:,} hashes |", flush=True)
        failed |= bool(clean.wrong)
        for place in Place:
            for bit in BITS.get(place, (0,)):
                times = 1 if place is Place.STORED else steps
                launch = check_bits(
                    s, case, steps, InjectedBitFlip(place=place, rank=RANK, bit=bit, times=times)
                )
                samples = [load_samples(s.run.folder, launch.launch, r) for r in launch.ranks]
                odd = bits.compare(samples).odd
                seen = {o.step for o in odd if o.ranks == (RANK,)}
                others = sum(o.ranks != (RANK,) for o in odd)
                failed |= not seen or others > 0
                print(
                    f"| {place} | {bit} | {len(seen) / times:.1%} | {'yes' if seen else 'no'} |"
                    f" {others} |", flush=True,
                )  # fmt: skip
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    sys.exit(main(parser.parse_args().steps))
