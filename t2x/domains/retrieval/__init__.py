"""Retrieval: two towers, contrastive losses of pairs, and the ranks of their counterparts."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.domains.retrieval.caption_contrast import *
  from t2x.domains.retrieval.contrastive import *
  from t2x.domains.retrieval.pair_losses import *
  from t2x.domains.retrieval.two_tower import *
  from t2x.domains.retrieval.version_contrast import *
else:
  __getattr__, __dir__ = exports(__name__)
