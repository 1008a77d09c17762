"""The model as mathematics: weights, pools, and the forward passes of the text stack and the MTP layer."""

from engine.model.batch import Batch, Segment
from engine.model.mtp import MtpLayer
from engine.model.pools import Pools
from engine.model.text import TextModel

__all__ = ["Batch", "MtpLayer", "Pools", "Segment", "TextModel"]
