"""Captions of pictures: scores with several references."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.domains.captions.caption_scores import *
else:
  __getattr__, __dir__ = exports(__name__)
