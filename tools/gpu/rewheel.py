"""Makes wheels of installed distributions again: their files as RECORD lists them, stored, with a new RECORD.

Run: python3 tools/gpu/rewheel.py SITE_PACKAGES FOLDER torch triton nvidia-    deflated, of distributions so named
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from torchtailor.trees.artifact.installed import InstalledDistribution, installed_in

_WRITTEN_BY_INSTALLERS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")


def rewheel_all(site: Path, folder: Path) -> list[Path]:
    """A wheel of each distribution in a site-packages folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return [rewheel(one, site, folder) for one in installed_in(site)]


def rewheel(one: InstalledDistribution, site: Path, folder: Path, compression: int = zipfile.ZIP_STORED) -> Path:
    info = one.dist_info.name
    lines = (one.dist_info / "WHEEL").read_text().splitlines()
    tags = [line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")]
    python, abi, _ = tags[0].split("-")
    platforms = ".".join(dict.fromkeys(tag.split("-")[2] for tag in tags))
    target = folder / f"{info.removesuffix('.dist-info')}-{python}-{abi}-{platforms}.whl"
    rows = []
    with zipfile.ZipFile(target, "w", compression, strict_timestamps=False) as wheel:
        for row in one.record:
            path = site / row.path
            made_later = row.path.endswith(".pyc") or row.path.startswith(("..", "/"))
            if made_later or (path.parent == one.dist_info and path.name in _WRITTEN_BY_INSTALLERS):
                continue
            wheel.write(path, row.path)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
            rows.append(
                f"{row.path},sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')},{path.stat().st_size}"
            )
        wheel.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))
    return target


def main() -> None:
    site, folder, beginnings = Path(sys.argv[1]), Path(sys.argv[2]), tuple(sys.argv[3:])
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [one for one in installed_in(site) if one.metadata.name.startswith(beginnings)]
    with ProcessPoolExecutor() as pool:
        make = partial(rewheel, site=site, folder=folder, compression=zipfile.ZIP_DEFLATED)
        for wheel in pool.map(make, chosen):
            print(wheel.name)


if __name__ == "__main__":
    main()
