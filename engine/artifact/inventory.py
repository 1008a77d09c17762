"""The parameters that the components of an artifact need, from their configurations (spec/artifact.md §4)."""

from engine.artifact.companions import DRAFTS, parse_draft_config, parse_mtp_config, parse_vision_config
from engine.artifact.config import TextConfig
from engine.artifact.directory import Directory, IndexedProposal
from engine.artifact.parameters import (
    Parameter,
    draft_parameters,
    mtp_parameters,
    proposal_parameters,
    text_parameters,
    vision_parameters,
)
from engine.exits import ArtifactError

COMPANIONS = ("vision", "mtp", *DRAFTS)


def expected_parameters(directory: Directory, text: TextConfig) -> list[Parameter]:
    """Every parameter the declared components need. Components this version does not know need none.

    Raises:
        ArtifactError: the configuration of a component is not one this version knows.
    """
    # Numbers of blocks are only numbers; without a look at what is bound, a hostile file would have us list them all.
    if text.experts is not None:
        _bounded(directory, "num_experts", text.experts.count)
    companions = [name for name in COMPANIONS if name in directory.components]
    parameters = list(text_parameters(text, companions))
    if "vision" in companions:
        vision = parse_vision_config(directory.components["vision"].config)
        _bounded(directory, "vision depth", vision.depth)
        parameters += vision_parameters(vision, text.hidden_size)
    if "mtp" in companions:
        parse_mtp_config(directory.components["mtp"].config, text)
        parameters += mtp_parameters(text)
    for name in DRAFTS:
        if name in companions:
            parameters += draft_parameters(
                name, parse_draft_config(name, directory.components[name].config, text), text
            )
    proposal = directory.components["text"].proposal
    if isinstance(proposal, IndexedProposal):
        if proposal.rows > text.vocab_size:
            raise ArtifactError(f"text.proposal: {proposal.rows} rows of a vocabulary of {text.vocab_size}")
        parameters += proposal_parameters(proposal.rows, text, companions)
    return parameters


def _bounded(directory: Directory, what: str, count: int) -> None:
    bound = len(directory.bindings)
    if count > bound:
        raise ArtifactError(f"{what} is {count}, which needs more parameters than the {bound} that are bound")
