"""What the built package has beyond its sources: the documentation's pages, the hook, and where its repository is."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(\]\(|src=\")(?!https?://|#)([^)\"]+)")


class Additions(BuildHookInterface[Any]):
    """Files of the wheel that are not in its package; an editable installation reads them where they are."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or self.target_name != "wheel":
            return
        for page in sorted(Path(self.root, "docs").glob("*.md")):  # `torchtailor help TOPIC` shows them
            build_data["force_include"][str(page)] = f"torchtailor/docs/{page.name}"
        for library in self._hook():
            place = f"{library.parent.name}/{library.name}"
            build_data["force_include"][str(library)] = f"torchtailor/workload/native/{place}"

    def _hook(self) -> list[Path]:
        """The workload hook as tools/build_hook.py compiled it; without that, one for this machine, if it has a cc."""
        native = Path(self.root, "src/torchtailor/workload/native")
        if not any(native.glob("*/*.so*")):
            line = [sys.executable, "tools/build_hook.py", "--system"]
            made = subprocess.run(line, cwd=self.root, capture_output=True, text=True, check=False)
            if made.returncode:
                self.app.display_warning(f"The wheel will have no workload hook. {made.stderr.strip()}")
            else:
                self.app.display_info(f"The wheel has a workload hook for {platform.machine()} only.")
        return sorted(native.glob("*/*.so*"))


class Repository(MetadataHookInterface):
    """URLs of the repository that it is built in, and a README whose links lead there; without one there are none."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text("utf-8")
        url = repository(Path(self.root))
        if url:
            metadata["urls"] = {
                "Homepage": url,
                "Documentation": f"{url}/tree/main/docs",
                "Changelog": f"{url}/blob/main/docs/changelog.md",
                "Source": url,
                "Issues": f"{url}/issues",
            }
            text = _RELATIVE.sub(lambda link: f"{link[1]}{url}/{_kind(link[2])}/main/{link[2]}", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def _kind(path: str) -> str:
    return "raw" if path.endswith((".png", ".svg")) else "blob"


def repository(root: Path) -> str:
    """From the CI, from git's remote, or from the sdist that this is built of."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    unpacked = root / "PKG-INFO"
    if unpacked.is_file():
        found = re.search(r"^Project-URL: Source, (\S+)$", unpacked.read_text("utf-8"), re.MULTILINE)
        return found[1] if found else ""
    line = ["git", "-C", str(root), "remote", "get-url", "origin"]
    try:
        remote = subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
    secure = re.sub(r"^git@([^:]+):", r"https://\1/", remote).removesuffix(".git")
    return secure if secure.startswith("https://") and "@" not in secure else ""
