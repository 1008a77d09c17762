"""The parameters that the components of an artifact need, from their configurations (spec/artifact.md §4)."""

from engine.artifact.companions import DRAFTS
from engine.artifact.config import TextConfig
from engine.artifact.directory import Directory, IndexedProposal
from engine.artifact.parameters import Parameter, component_registry
from engine.exits import ArtifactError

COMPANIONS = ("vision", "mtp", *DRAFTS)


def expected_parameters(directory: Directory, text: TextConfig) -> list[Parameter]:
    """Every parameter the declared components need. Components this version does not know need none.

    Raises:
        ArtifactError: the configuration of a component is not one this version knows.
    """
    configs = {
        name: component.config
        for name, component in directory.components.items()
        if name == "text" or name in COMPANIONS
    }
    # Numbers of blocks are only numbers; without a look at what is bound, a hostile file would have us list them all.
    if text.experts is not None:
        _bounded(directory, "num_experts", text.experts.count)
    if "vision" in configs:
        _bounded(directory, "vision depth", configs["vision"].get("depth"))
    proposal = directory.components["text"].proposal
    rows = proposal.rows if isinstance(proposal, IndexedProposal) else None
    if rows is not None and rows > text.vocab_size:
        raise ArtifactError(f"text.proposal: {rows} rows of a vocabulary of {text.vocab_size}")
    return list(component_registry(configs, rows))


def _bounded(directory: Directory, what: str, count: object) -> None:
    bound = len(directory.bindings)
    if isinstance(count, int) and count > bound:
        raise ArtifactError(f"{what} is {count}, which needs more parameters than the {bound} that are bound")
