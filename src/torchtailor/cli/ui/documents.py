"""What `--json` prints: by its name, the commands that print a document, and where its type is."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

from msgspec import Meta, Struct

from torchtailor.core.documents import schema_parts

SCHEMA_VERSION = 1  # of every document; docs/json.md


class ErrorDocument(Struct):
    """With --json, on stdout, where the command failed before it had a result; stderr has the same in words."""

    error: Annotated[str, Meta(description="what is wrong, in one sentence")]
    hint: Annotated[str, Meta(description="what to do next")]
    exit_code: Annotated[int, Meta(description="see [exit-codes.md](exit-codes.md)")]


DOCUMENTS: Mapping[str, tuple[str, str]] = {
    "error": ("any command with `--json`", "cli.ui.documents:ErrorDocument"),
    "host": ("`detect --json`", "advise.host.model:Host"),
    "recommend": ("`recommend --json`", "advise.recommendation.result:Recommendation"),
    "matrix": ("`matrix --json`", "catalog.variants.table:MatrixTable"),
    "matrix-why": ("`matrix --why NAME --json`", "catalog.variants.why:Explanation"),
    "inspect": ("`inspect --json`", "verification.inspection.document:InspectDocument"),
    "diff": ("`diff --json`", "verification.sizes.compare:DiffDocument"),
    "sizes": ("`sizes --json` of an artifact or a release", "verification.inspection.measure:SizesDocument"),
    "sizes-history": ("`sizes --json` of a project", "verification.sizes.history:HistoryDocument"),
    "tailor": ("`tailor --json`", "tailoring.inputs:TailorDocument"),
    "image": ("`image --json`", "tailoring.image.result:ImageDocument"),
    "trace": ("`record --json`, `trace show --json` and `trace merge --json`", "workload.trace:TraceDocument"),
    "packs-pull": ("`packs pull --json`, also with `--dry-run`", "tailoring.image.attached:PulledPacks"),
    "drop-rules": ("`tailor --drop list --json`", "trees.artifact.drops:DropRules"),
    "restore": ("`restore --json`", "tailoring.restore:Restored"),
    "verify": ("`verify --json`", "verification.output:VerifyDocument"),
    "build-wheel-plan": ("`build --dry-run --json`", "building.wheel.plan:WheelPlanDocument"),
    "build-wheel": ("`build --json`", "building.wheel.builder:WheelBuildDocument"),
    "build-source-plan": ("`build --via source --dry-run --json`", "building.source.backend:SourcePlanDocument"),
    "build-source": ("`build --via source --json`", "building.source.backend:SourceBuildDocument"),
    "build-nix-plan": ("`build --via nix --dry-run --json`", "building.nix.backend:NixPlanDocument"),
    "build-nix": ("`build --via nix --json`", "building.nix.backend:NixBuildDocument"),
    "build-farm-plan": ("`build --on WHERE --dry-run --json`", "building.farm.build:FarmPlanDocument"),
    "build-farm": ("`build --on WHERE --json`", "building.farm.build:FarmBuildDocument"),
    "farm-check": ("`farm check --json`", "building.farm.check:FarmCheck"),
    "ci": ("`ci github --json` and `ci gitlab --json`, also with `--dry-run`", "publish.ci.plan:CiDocument"),
    "install-plan": ("`install --dry-run --json`", "building.install:InstallPlanDocument"),
    "install": ("`install --json`", "building.install:InstallDocument"),
    "publish": ("`publish --json`, also with `--dry-run`", "publish.publish:Published"),
    "publish-list": ("`publish --list --json`", "publish.lifecycle:ListingDocument"),
    "publish-change": (
        "`publish --json` with `--promote`, `--yank`, `--unyank`, `--rollback` or `--prune`",
        "publish.lifecycle:Changed",
    ),
    "publish-flox": ("`publish --flox ORG --json`", "publish.flox:FloxPublished"),
    "recipes-write": ("`recipes write --json`", "nix.write:WriteDocument"),
    "recipes-check": ("`recipes check --json`", "nix.audit:AuditDocument"),
    "recipes-migrate": ("`recipes migrate --json`", "nix.migrate:MigrationDocument"),
    "recipes-hash": ("`recipes hash --json`", "nix.hashes:HashResults"),
    "recipes-build": ("`recipes build --json`", "building.nix.many:RecipesBuildDocument"),
    "recipes-rules": ("`recipes rules --json`", "nix.report:RulesDocument"),
    "site": ("`site --json`", "site.pages:SiteDocument"),
    "catalog-update": ("`catalog update --json`", "fetch.upkeep.update:CatalogUpdateDocument"),
    "history": ("`history --json`", "building.ledger.ledger:Attempts"),
    "history-jobs": ("`history --farm --json`", "building.ledger.ledger:LedgerJobs"),
    "cache": ("`cache list --json`", "fetch.cache:CacheListing"),
    "cache-prune": ("`cache prune --json`", "fetch.cache:CachePruned"),
    "doctor": ("`doctor --json`", "verification.doctor:DoctorReport"),
}


def schema_of(name: str) -> str:
    """What `schema` is in a document of this name."""
    return f"torchtailor-{name}/{SCHEMA_VERSION}"


def document_type(name: str) -> type:
    """The type of a document."""
    module, _, name = DOCUMENTS[name][1].partition(":")
    found: type = getattr(import_module(f"torchtailor.{module}"), name)
    return found


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a document."""
    whole, parts = schema_parts(document_type(name))
    properties = {"schema": {"const": schema_of(name)}} | {
        key: value for key, value in whole["properties"].items() if key != "schema"
    }
    required = ["schema", *(key for key in whole.get("required", ()) if key != "schema")]
    return whole | {"properties": properties, "required": required, "$defs": parts}
