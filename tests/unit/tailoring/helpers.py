"""Options and environments for tests."""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

from tests.unit.wheels.builder import digest
from torchtailor.advise.host.targets import read_targets
from torchtailor.catalog import load_catalog
from torchtailor.surgery.cut import Cut

CATALOG = load_catalog()


def options(gpu: str = "9.0", **others: Any) -> Cut:
    return Cut(read_targets([gpu], CATALOG, {}), rules=CATALOG.rules, **others)


def install(wheel: Path, site: Path, installer: str = "pip") -> None:
    """Unpack a wheel as an installer does, with CR LF in RECORD as pip writes it."""
    site.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        (dist_info,) = {top for name in archive.namelist() if (top := name.split("/")[0]).endswith(".dist-info")}
    (site / dist_info / "INSTALLER").write_text(f"{installer}\n")
    record = site / dist_info / "RECORD"
    text = record.read_text().removesuffix(f"{dist_info}/RECORD,,\n")
    said = f"{installer}\n".encode()
    text += f"{dist_info}/INSTALLER,sha256={digest(said)},{len(said)}\n"
    text += f"{dist_info}/RECORD,,\n"
    record.write_bytes(text.replace("\n", "\r\n").encode())


def tree(folder: Path) -> dict[str, str]:
    """Every file of a folder with the hash of its bytes; links with where they lead."""
    return {
        str(path.relative_to(folder)): f"-> {path.readlink()}"
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def check_records(site: Path) -> None:
    """Every RECORD says what is there: as `pip check` does not, but a careful auditor would."""
    for record in site.glob("*.dist-info/RECORD"):
        rows = list(csv.reader(io.StringIO(record.read_text())))
        listed = {row[0] for row in rows}
        for path, recorded, size in rows:
            if (site / path).is_symlink() and (site / path).is_dir():  # of what was never opened
                continue
            data = (site / path).read_bytes()
            if recorded:
                assert recorded == f"sha256={digest(data)}", path
                assert int(size) == len(data)
        present = {str(p.relative_to(site)) for p in record.parent.rglob("*") if p.is_file()}
        assert present <= listed, present - listed
