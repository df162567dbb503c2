"""Draw the pictures of the README: the page and the last screen of a main job, by Chromium.

python scripts/pictures.py      # docs/report.png and docs/screen.png, from tests/golden
"""

import gzip
import html
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.interface.report.page import page  # noqa: E402
from harness.record.store import load  # noqa: E402

GOLDEN = ROOT / "tests" / "golden"
#: Width and height of each picture in pixels.
PAGE = (960, 1180)
SCREEN = (760, 770)
TERMINAL = """<body style="margin:16px;background:#0d1117;color:#e6edf3">
<pre style="font:13px/1.35 'DejaVu Sans Mono',monospace">{}</pre>"""


def photograph(content: str, size: tuple[int, int], to: Path) -> None:
    """Write a picture of an HTML document."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("Chromium is missing: bash scripts/system-packages.sh")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "page.html")
        source.write_text(content, encoding="utf-8")
        words = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--window-size={size[0]},{size[1]}", f"--screenshot={to}", source.as_uri(),
        ]  # fmt: skip
        subprocess.run(words, check=True, capture_output=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "record.json")
        record.write_bytes(gzip.decompress((GOLDEN / "main-job.json.gz").read_bytes()))
        assert json.loads(record.read_text())["complete"]
        photograph(page.render(load(record)), PAGE, ROOT / "docs" / "report.png")
    screen = html.escape((GOLDEN / "main-job-80.txt").read_text())
    photograph(TERMINAL.format(screen), SCREEN, ROOT / "docs" / "screen.png")


if __name__ == "__main__":
    main()
