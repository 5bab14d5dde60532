"""Semantic segmentation: images with masks, class logits per pixel, and intersection over union."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.domains.segmentation.mask_folder import *
  from t2x.domains.segmentation.pixel_classifier import *
  from t2x.domains.segmentation.predicted_masks import *
  from t2x.domains.segmentation.task import *
  from t2x.domains.segmentation.transforms import *
else:
  __getattr__, __dir__ = exports(__name__)
