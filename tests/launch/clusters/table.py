"""Print every available engine, its version, and the results of the conformance suite.

python -m tests.launch.clusters.table                          # the engines of this machine
python -m tests.launch.clusters.table -k "local or hosts"      # some of them
sudo python -m tests.launch.clusters.table --debian trixie sid # also Slurm of other Debian releases
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[3]
SUITE = "tests/launch/clusters/test_conformance.py"
CHECKS = {
    "test_a_world_over_all_nodes": "world",
    "test_worlds_at_once_have_places_of_their_own_and_break_alone": "at once",
    "test_the_rank_that_broke_is_named_and_its_world_is_gone": "rank named",
    "test_the_next_world_is_well": "next well",
    "test_a_node_whose_agent_dies_is_named_and_the_next_world_gets_a_new_one": "agent lost",
}
#: The result of a test: engine, version, check, outcome.
Result = tuple[str, str, str, str]


def results(path: Path) -> list[Result]:
    """Read the results of the suite from a JUnit file."""
    out = []
    for case in ElementTree.parse(path).iter("testcase"):
        about = {p.get("name"): str(p.get("value")) for p in case.iter("property")}
        name = str(case.get("name"))
        engine = about.get("engine", name.partition("[")[2].rstrip("]").split("-")[0])
        words = {child.tag for child in case}
        end = (
            "failed" if words & {"failure", "error"} else "skipped" if "skipped" in words else "ok"
        )
        out.append((engine, about.get("version", ""), CHECKS[name.partition("[")[0]], end))
    return out


def table(rows: list[Result]) -> str:
    """Return one line per engine and version, with passed and executed tests of each check."""
    counts: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for engine, version, check, end in rows:
        counts[engine, version][check].append(end)
    lines = [f"{'engine':<20} {'version':<18}" + "".join(f"{c:>12}" for c in CHECKS.values())]
    for (engine, version), checks in sorted(counts.items()):
        cells = []
        for check in CHECKS.values():
            ran = [end for end in checks[check] if end != "skipped"]
            cells.append(f"{ran.count('ok')}/{len(ran)}" if ran else "-")
        lines.append(f"{engine:<20} {version[:18]:<18}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", help="pytest's -k: selects engines and checks")
    parser.add_argument(
        "--debian", nargs="*", default=[], help="Debian releases whose Slurm is also tested"
    )
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        beside = [["bash", "scripts/in-debian.sh", release, "python"] for release in asked.debian]
        for i, start in enumerate([[sys.executable], *beside]):
            path = Path(folder, f"{i}.xml")
            chosen = f"slurm and ({asked.k})" if i and asked.k else "slurm" if i else asked.k
            # pytest's default format, xunit2, cannot store the version that a test records.
            kept = ["-o", "junit_family=xunit1", f"--junitxml={path}"]
            words = ["-m", "pytest", SUITE, "-q", "-m", "full or not full", *kept]
            subprocess.run(
                [*start, *words, *(["-k", chosen] if chosen else [])],
                cwd=ROOT, stdout=sys.stderr, check=False,
            )  # fmt: skip
            rows += results(path)
    print(table(rows))
    return int(any(end == "failed" for *_, end in rows))


if __name__ == "__main__":
    raise SystemExit(main())
