"""The planner reproduces every published file to the byte (spec/artifact.md §4.9)."""

from collections import Counter
from functools import cache
from math import prod

import pytest

from engine.artifact.convert.planner import Plan, plan_artifact
from engine.artifact.convert.recipes import Q4, Q5, Q6, Q8, find_recipe
from engine.artifact.layouts import encoded_size
from engine.artifact.planning import TensorSpec, plan_files
from engine.exits import ConfigurationError
from tests.artifact.convert.published import PUBLISHED, configs, text_config


@cache
def plan_of(recipe: str) -> Plan:
    published = PUBLISHED[recipe]
    return plan_artifact(
        configs(moe=published.moe, draft=published.draft),
        find_recipe(recipe),
        published.resources,
        name=published.name,
        provenance={
            "converter": "ninfer-v3",
            "recipe": recipe,
            "sources": {source: {"path": f"models/{source}"} for source in published.provenance_sources},
        },
        proposal_rows=131072,
    )


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_sizes(recipe: str) -> None:
    plan, published = plan_of(recipe), PUBLISHED[recipe]
    sizes = [planned.bytes for planned in plan.objects if isinstance(planned.spec, TensorSpec)]
    assert sum(sizes) == published.tensor_bytes
    assert plan.payload_bytes == published.payload
    text, files = plan_files(plan.directory, plan.payload_bytes, "model.ninfer", 32_000_000_000)
    assert 32 + len(text) == published.start
    assert files == [{"path": None, "payload_bytes": published.payload}]
    assert 32 + len(text) + published.payload == published.file


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_counts(recipe: str) -> None:
    plan, published = plan_of(recipe), PUBLISHED[recipe]
    assert len(plan.objects) == published.objects
    assert len(plan.directory["bindings"]) == published.bindings
    assert len(plan.directory["uses"]) == published.uses
    formats = Counter(planned.spec.format for planned in plan.objects if isinstance(planned.spec, TensorSpec))
    if published.formats:
        assert formats == published.formats


@pytest.mark.parametrize("recipe", [name for name, published in PUBLISHED.items() if published.anchors])
def test_anchors(recipe: str) -> None:
    plan, published = plan_of(recipe), PUBLISHED[recipe]
    offsets = {planned.id: planned.offset for planned in plan.objects}
    for name, (object_id, offset) in published.anchors.items():
        binding = plan.directory["bindings"][name]
        bound, rows = (
            (binding["object"], None)
            if "object" in binding
            else (binding["parts"][0]["object"], tuple(binding["parts"][0]["range"]))
        )
        assert (bound, offsets[bound]) == (object_id, offset), name
        if name in published.row_ranges:
            assert rows == published.row_ranges[name]


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_bindings_cover_their_parents(recipe: str) -> None:
    """Every object is bound, and parts of a parent lie one behind the other without a hole."""
    plan = plan_of(recipe)
    bindings = plan.directory["bindings"]
    for parent in plan.parents:
        position = 0
        for member in parent.parameters:
            binding = bindings[member.name]
            size = prod(member.shape)
            if len(parent.parameters) == 1:
                assert binding == {"object": parent.id}
            else:
                assert binding == {"parts": [{"object": parent.id, "range": [position, position + size]}]}
            position += size
        assert position == prod(parent.shape)
    assert {parent.id for parent in plan.parents} == {
        planned.id for planned in plan.objects if planned.id.startswith("weight/")
    }


def test_physical_parents_of_the_27b() -> None:
    """Shapes, formats and bytes of spec/artifact.md §4.4."""
    plan = plan_of("qwen3_6_27b")
    sizes = {planned.id: planned.bytes for planned in plan.objects}
    found = {
        (parent.shape, parent.selection.format, sizes[parent.id]) for parent in plan.parents if len(parent.shape) == 2
    }
    assert {
        ((248320, 5120), Q6, 993_280_000),
        ((7168, 5120), Q4, 19_496_960),
        ((7168, 5120), Q5, 24_084_480),
        ((5120, 6144), Q5, 20_643_840),
        ((4096, 5120), Q4, 11_141_120),
        ((12288, 5120), Q5, 41_287_680),
        ((48, 5120), "bf16", 491_520),
        ((34816, 5120), Q4, 94_699_520),
        ((5120, 17408), Q5, 58_490_880),
        ((5120, 10240), Q8, 55_705_600),
        ((14336, 5120), Q8, 77_987_840),
        ((5120, 6144), Q8, 33_423_360),
        ((34816, 5120), Q8, 189_399_040),
        ((5120, 17408), Q8, 94_699_520),
        ((131072, 5120), Q4, 356_515_840),
        ((3456, 1152), Q4, encoded_size(Q4, (3456, 1152))),
        ((5120, 4608), Q8, encoded_size(Q8, (5120, 4608))),
    } <= found


def test_policies_follow_the_format() -> None:
    policies = Counter(use["activation_policy"] for use in plan_of("qwen3_8_27b_nvfp4").directory["uses"])
    assert policies["AllowA4"] == 168
    assert policies["AllowA8"] > 0
    divisors = [use["auxiliaries"] for use in plan_of("qwen3_6_27b_nvfp4").directory["uses"] if "auxiliaries" in use]
    assert len(divisors) == 485


def test_head_uses_name_every_draft_component() -> None:
    uses = plan_of("qwen3_8_27b").directory["uses"]
    assert [use["input"] for use in uses if use["parameter"] == "text/output_head"] == [
        "text/final_hidden", "mtp/final_hidden", "dflash2/final_hidden",
    ]  # fmt: skip


def test_tied_head_shares_the_embedding() -> None:
    record = text_config(moe=False) | {"tie_word_embeddings": True}
    plan = plan_artifact({"text": record}, find_recipe("qwen3_6_27b"), {"tokenizer.json": 5}, name=None, provenance={})
    bindings = plan.directory["bindings"]
    assert bindings["text/output_head"] == bindings["text/token_embedding"]
    # Stored differently, each has its own object.
    plan = plan_artifact({"text": record}, find_recipe("qwen3_8_27b"), {"tokenizer.json": 5}, name=None, provenance={})
    bindings = plan.directory["bindings"]
    assert bindings["text/output_head"] != bindings["text/token_embedding"]


@pytest.mark.parametrize(
    ("components", "resources", "message"),
    [
        (("text", "audio"), {"tokenizer.json": 1}, "unknown component 'audio'"),
        (("mtp",), {"tokenizer.json": 1}, "always has the component text"),
        (("text",), {"merges.txt": 1}, "unknown resource 'merges.txt'"),
    ],
)
def test_refusals(components: tuple[str, ...], resources: dict[str, int], message: str) -> None:
    known = configs(moe=False, draft=None)
    with pytest.raises(ConfigurationError, match=message):
        plan_artifact(
            {name: known.get(name, {}) for name in components},
            find_recipe("bf16"), resources, name=None, provenance={},
        )  # fmt: skip


def test_unknown_recipe_lists_the_known() -> None:
    with pytest.raises(ConfigurationError, match="unknown recipe 'q4'; known: bf16, nano, nano_search, "):
        find_recipe("q4")
