"""Workflows of many options, and the schemas of GitHub and GitLab that they must fit."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft7Validator
from ruamel.yaml import YAML

from torchtailor.catalog import NIX, SOURCE, WHEEL, Catalog
from torchtailor.core.errors import TorchtailorError
from torchtailor.publish.ci.plan import CiDivision, CiLevel, CiOptions, CiSystem, plan_ci
from torchtailor.publish.ci.render import render_ci

_SCHEMAS = {CiSystem.GITHUB: "github-workflows.json", CiSystem.GITLAB: "gitlab-ci.json"}

SELECTORS = st.lists(
    st.sampled_from(["sm90-avx2", "sm{80,90}-*", "sm*-avx2", "cpu-*", "sm121-*", "cpu-armv9", "sm90-armv8_2"]),
    min_size=1,
    max_size=2,
    unique=True,
).map(tuple)
# a colon, a hash, quotes and braces have a meaning in YAML, in sh and in GitHub's expressions
TEXT = st.sampled_from(
    ["", "s3://b/x y", "s3://bucket/torch", "/srv/a: b", "gs://b#1", "s3://\"q\"/'r'", "abfs://c/$X"]
)
LABELS = st.sampled_from(["self-hosted,gpu", "h100", "group: a", "${{ vars.RUNNER }}", "$RUNNER"])
GPU_RUNNERS = st.builds(lambda gpu, labels: (f"{gpu}={labels}",), st.sampled_from(["sm90", "8.0", "H100"]), LABELS)

OPTIONS = st.builds(
    CiOptions,
    selectors=SELECTORS,
    releases=st.sampled_from([(), ("2.15",), ("cuda-13_0",), ("2.14", "2.15")]),
    method=st.sampled_from([WHEEL, SOURCE, NIX]),
    nvidia=st.booleans(),
    build_options=st.sampled_from([(), ("--recompress",), ("--set", "A=b c"), ("--variants",)]),
    division=st.sampled_from([None, *CiDivision]),
    runners=st.one_of(st.just(()), LABELS.map(lambda labels: (f"x86_64={labels}",))),
    gpu_runners=st.one_of(st.just(()), GPU_RUNNERS),
    level=st.sampled_from(CiLevel),
    on=st.sampled_from([None, "here", "local:2", "tcp://host:8786"]),
    store=TEXT,
    objects=st.sampled_from(["", "redis://cache"]),
    publish=TEXT,
    publish_nvidia=st.booleans(),
    cache=st.booleans(),
    schedule=st.sampled_from(["", "0 3 * * 1"]),
    branch=st.sampled_from(["", "trunk", "release/2.15", "no: branch"]),
    minutes=st.sampled_from([None, 30]),
    package=st.sampled_from(["", "./tools/torchtailor", "git+https://host/x@v1", "torchtailor>=0.1,<2"]),
)


def written(catalog: Catalog, system: CiSystem, options: CiOptions) -> str | None:
    """The text of a workflow; None where the options are refused, with a sentence and a next step."""
    try:
        plan = plan_ci(catalog, system, options)
    except TorchtailorError as error:
        assert error.message.endswith(".") and error.hint, error
        return None
    text = render_ci(plan, plan.row.path)
    assert text == render_ci(plan_ci(catalog, system, options), plan.row.path)
    return text


def problems(system: CiSystem, text: str) -> list[str]:
    """What the system's own schema says against a workflow."""
    document = load(text)
    return [
        f"{'/'.join(map(str, error.path))}: {error.message[:300]}" for error in _validator(system).iter_errors(document)
    ]


@cache
def _validator(system: CiSystem) -> Any:
    path = files("check_jsonschema").joinpath("builtin_schemas", "vendor", _SCHEMAS[system])
    return Draft7Validator(json.loads(path.read_text("utf-8")))


@lru_cache(maxsize=8)  # a reader in Python takes longer than making the workflow
def load(text: str) -> dict[str, Any]:
    """A workflow as its system reads it."""
    document: dict[str, Any] = YAML(typ="safe", pure=True).load(text)  # YAML 1.2: `on` is a string
    return document
