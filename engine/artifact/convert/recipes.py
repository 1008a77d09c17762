"""Recipes: which format and which encoder each parameter gets, as data (spec/artifact.md §5.2)."""

import re
from collections.abc import Container
from dataclasses import dataclass
from functools import cache

from engine.artifact.parameters import Parameter
from engine.exits import ConfigurationError

Q4, Q5, Q6, Q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"
NVFP4, FP8 = "nvfp4", "fp8_e4m3fn_row_bf16"

CAST, ABSMAX, SEARCH = "cast", "grouped_absmax", "grouped_search"
ROW_MAXABS, NVFP4_ABSMAX, IMPORT = "fp8_row_maxabs", "nvfp4_absmax", "import_encoded"

_SOURCE_OF = {"imatrix": SEARCH, "quantized": IMPORT}
_POLICIES = {NVFP4: "AllowA4", FP8: "AllowA8"}
_LAYER = re.compile(r"/layers/(\d+)/")


@dataclass(frozen=True)
class Selection:
    """How one parameter is stored. Parameters of a packing group become one object when their selections are equal.

    `divisor` is that of imported NVFP4 words, which one object has only one of.
    """

    format: str
    method: str
    fuse: bool = True
    divisor: float | None = None

    @property
    def policy(self) -> str:
        """The activation precision that uses of this parameter permit (§1.6.2).

        NVFP4 that was encoded here comes without the activation divisor that 4-bit activations need.
        """
        return "A16Only" if self.method == NVFP4_ABSMAX else _POLICIES.get(self.format, "A16Only")


@dataclass(frozen=True)
class Rule:
    """Parameters whose names match `pattern`, in the layers of `layers` when given, are stored as said.

    In a pattern `*` is one path segment, `**` any number of them, `{a,b}` either.
    """

    pattern: str
    format: str
    method: str = ABSMAX
    layers: Container[int] | None = None
    fuse: bool = True

    def applies(self, name: str) -> bool:
        """Whether this rule decides about the parameter `name`."""
        if not _expression(self.pattern).fullmatch(name):
            return False
        layer = _LAYER.search(name)
        return self.layers is None or (layer is not None and int(layer[1]) in self.layers)


@dataclass(frozen=True)
class Recipe:
    """Ordered rules; the first that applies decides, and what no rule names keeps its direct format.

    `required_sources` are inputs besides the checkpoint that a conversion must be given. With `quantized_vectors`, text
    tensors that are no projections come from the quantised checkpoint too.
    """

    name: str
    summary: str
    rules: tuple[Rule, ...]
    required_sources: tuple[str, ...] = ()
    quantized_vectors: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of all inputs besides the checkpoint that this recipe reads."""
        methods = {rule.method for rule in self.rules}
        return tuple(source for source, method in _SOURCE_OF.items() if method in methods)

    def select(self, parameter: Parameter) -> Selection:
        """The storage of `parameter`. Norms, biases and other vectors always keep their direct format."""
        if parameter.quantizable:
            for rule in self.rules:
                if rule.applies(parameter.name):
                    return Selection(rule.format, rule.method, rule.fuse)
        return Selection(parameter.direct, CAST)


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`.

    Raises:
        ConfigurationError: there is none; the message lists the names there are.
    """
    if name not in RECIPES:
        raise ConfigurationError(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    return RECIPES[name]


def check_inputs(recipe: Recipe, sources: Container[str]) -> None:
    """Check that `recipe` is given what it needs.

    Raises:
        ConfigurationError: a source is missing.
    """
    for source in recipe.required_sources:
        if source not in sources:
            raise ConfigurationError(f"recipe {recipe.name!r} needs --source {source}=PATH")


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    pieces = {"**": ".+", "*": "[^/]+", "{": "(?:", "}": ")", ",": "|"}
    return re.compile("".join(pieces.get(part, re.escape(part)) for part in re.split(r"(\*\*|[*{},])", pattern)))


_BLOCK = "text/layers/*/"
_VOCABULARY = "text/{token_embedding,output_head}"
_DRAFTS = "{mtp,dflash,dflash2}/**/"

_COMPANIONS = (
    Rule("vision/patch_embedding", Q6),
    Rule("vision/merger/{fc1,fc2}", Q8),
    Rule("vision/layers/*/{attention/query,attention/key,attention/value,mlp/fc1}", Q4),
    Rule("vision/layers/*/{attention/output,mlp/fc2}", Q5),
    Rule(_DRAFTS + "{router,shared_score,kernel_projection,hidden_projection}", "bf16", CAST),
    Rule("{mtp,dflash,dflash2}/**", Q8),
    Rule("proposal/head", Q4),
)


def _dense(method: str = ABSMAX, *, late_output: str = Q5) -> tuple[Rule, ...]:
    """Text rules of the dense family; `late_output` is the format of the output projections from layer 36 on."""
    late = range(36, 64) if late_output != Q5 else ()
    return (
        Rule(_BLOCK + "{attention,gdn}/{query,key}", Q4, method),
        Rule(_BLOCK + "mlp/{gate,up}", Q4, method),
        Rule(_BLOCK + "gdn/{a_projection,b_projection}", "bf16", CAST, fuse=False),
        Rule(_BLOCK + "{attention/output,gdn/output,mlp/down}", late_output, method, late),
        Rule(_BLOCK + "**", Q5, method),
    )


def _sparse(method: str = ABSMAX) -> tuple[Rule, ...]:
    """Text rules of the mixture-of-experts family."""
    return (
        Rule("text/token_embedding", Q8),
        Rule("text/output_head", Q6, method),
        Rule(_BLOCK + "moe/experts/*/{gate,up}", Q4, method),
        Rule(_BLOCK + "moe/experts/*/down", Q6, method, (34, 38, 39)),
        Rule(_BLOCK + "moe/experts/*/down", Q5, method),
        Rule(_BLOCK + "{moe/router,moe/shared_score,gdn/a_projection,gdn/b_projection}", "bf16", CAST),
        Rule(_BLOCK + "**", Q8, method),
    )


_27B = (Rule(_VOCABULARY, Q6), *_dense(), *_COMPANIONS)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("bf16", "every parameter in its direct format; lossless for a bfloat16 checkpoint", ()),
        Recipe("nano", "the 27B mix for small dense models", _27B),
        Recipe(
            "nano_search",
            "the 27B mix for small dense models, searched",
            (Rule(_VOCABULARY, Q6, SEARCH), *_dense(SEARCH), *_COMPANIONS),
        ),
        Recipe(
            "nano_nvfp4",
            "NVFP4 projections and an FP8 vocabulary for small models",
            (
                Rule(_VOCABULARY, FP8, ROW_MAXABS),
                Rule(_BLOCK + "{gdn/a_projection,gdn/b_projection,moe/router,moe/shared_score}", "bf16", CAST),
                Rule(_BLOCK + "**", NVFP4, NVFP4_ABSMAX),
                *_COMPANIONS,
            ),
        ),
        Recipe("nano_moe", "the 35B mix for small mixtures of experts", (*_sparse(), *_COMPANIONS)),
        Recipe(
            "nano_moe_search",
            "the 35B mix for small mixtures of experts, searched",
            (*_sparse(SEARCH), *_COMPANIONS),
        ),
        Recipe("qwen3_6_27b", "Qwen3.6-27B, 4 to 6 bits", _27B),
        Recipe(
            "qwen3_8_27b_official",
            "Qwen3.8-27B, 4 to 5 bits, 8-bit vocabulary",
            (Rule(_VOCABULARY, Q8), *_dense(), *_COMPANIONS),
        ),
        Recipe(
            "qwen3_8_27b",
            "Qwen3.8-27B, searched 4 to 5 bits",
            (
                Rule("text/token_embedding", Q4, SEARCH),
                Rule("text/output_head", Q6, SEARCH),
                *_dense(SEARCH, late_output=Q4),
                *_COMPANIONS,
            ),
            ("imatrix",),
        ),
        Recipe(
            "qwen3_6_35b_a3b",
            "Qwen3.6-35B-A3B, 4- and 5-bit experts, 8 bits elsewhere",
            (*_sparse(), *_COMPANIONS),
        ),
        Recipe(
            "qwen3_6_27b_nvfp4",
            "Qwen3.6-27B with imported NVFP4 projections",
            (
                Rule(_VOCABULARY, Q8),
                Rule(_BLOCK + "attention/{query,key,gate,value}", NVFP4, IMPORT, range(27, 64)),
                Rule(_BLOCK + "attention/output", NVFP4, IMPORT, set(range(64)) - {3, 7}),
                Rule(_BLOCK + "gdn/{query,key,value,z}", NVFP4, IMPORT),
                Rule(_BLOCK + "gdn/output", NVFP4, IMPORT, set(range(64)) - {4}),
                Rule(_BLOCK + "mlp/{gate,up,down}", NVFP4, IMPORT),
                Rule(_BLOCK + "gdn/{a_projection,b_projection}", "bf16", CAST, fuse=False),
                *_COMPANIONS,
            ),
            ("quantized",),
        ),
        Recipe(
            "qwen3_8_27b_nvfp4",
            "Qwen3.8-27B with imported NVFP4 and FP8 projections",
            (
                Rule("text/token_embedding", FP8, ROW_MAXABS),
                Rule("text/output_head", FP8, IMPORT),
                Rule(_BLOCK + "mlp/{gate,up,down}", NVFP4, IMPORT, range(56)),
                Rule(_BLOCK + "gdn/{a_projection,b_projection}", "bf16", CAST),
                Rule(_BLOCK + "**", FP8, IMPORT),
                *_COMPANIONS,
            ),
            ("quantized",),
            quantized_vectors=True,
        ),
    )
}
