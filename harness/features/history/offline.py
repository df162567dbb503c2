"""asv's page without the Internet: the scripts and styles that it loads, laid beside it.

They are taken from what npm has installed in the results folder, never from the network. So a page
that was published can be opened on a cluster that reaches nobody.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.base import files

#: What asv 0.6 loads, by the end of its address -> the npm package, and the file in it.
PACKAGES: Mapping[str, tuple[str, str]] = {
    "jquery-3.3.1.min.js": ("jquery@3.3.1", "dist/jquery.min.js"),
    "jquery.flot.min.js": ("jquery-flot@0.8.3", "jquery.flot.js"),
    "jquery.flot.time.min.js": ("jquery-flot@0.8.3", "jquery.flot.time.js"),
    "jquery.flot.selection.min.js": ("jquery-flot@0.8.3", "jquery.flot.selection.js"),
    "jquery.flot.categories.min.js": ("jquery-flot@0.8.3", "jquery.flot.categories.js"),
    "jquery.flot.orderBars.js": ("flot-orderbars@1.0.0", "js/jquery.flot.orderBars.js"),
    "stupidtable.min.js": ("stupid-table-plugin@1.1.3", "stupidtable.min.js"),
    "md5.min.js": ("blueimp-md5@2.19.0", "js/md5.min.js"),
    "bootstrap.min.js": ("bootstrap@3.1.1", "dist/js/bootstrap.min.js"),
    "bootstrap.min.css": ("bootstrap@3.1.1", "dist/css/bootstrap.min.css"),
}
#: Where npm installs, and where copies lie in the page's folder.
INSTALLED = "node_modules"
BESIDE = "beside"
#: An address in a tag, with what guards against another file under it.
_TAG = re.compile(r'(src|href)="https://[^"]+/([^/"]+\.(?:js|css))"([^>]*)')
_GUARD = re.compile(r' (integrity|crossorigin|referrerpolicy)="[^"]*"')


def beside(html: Path, results: Path) -> list[str]:
    """Make the page in ``html`` load copies of what npm installed in ``results``.

    What it still loads from elsewhere is returned, by file.
    """
    index = html / "index.html"
    missing: list[str] = []

    def local(tag: re.Match[str]) -> str:
        attribute, name, rest = tag.groups()
        package, file = PACKAGES.get(name, ("", ""))
        source = results / INSTALLED / package.rpartition("@")[0] / file
        if not package or not source.is_file():
            missing.append(name)
            return tag[0]
        (html / BESIDE).mkdir(exist_ok=True)
        files.write({html / BESIDE / name: source.read_bytes()})
        return f'{attribute}="{BESIDE}/{name}"{_GUARD.sub("", rest)}'

    files.write({index: _TAG.sub(local, index.read_text(encoding="utf-8"))})
    return missing


def command(results: Path) -> str:
    """The command that installs all of them."""
    packages = dict.fromkeys(package for package, _ in PACKAGES.values())
    return f"npm install --prefix {results} {' '.join(packages)}"


def main() -> int:
    """For a page that ``asv publish`` made by itself: 1 if it still loads anything."""
    results = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    missing = beside(results / "html", results)
    if missing:
        print(f"still loaded from the Internet: {', '.join(missing)}\n  try  {command(results)}")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
