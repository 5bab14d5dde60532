"""Captions of pictures: scores with several references."""

from t2x.domains.captions.caption_scores import *
