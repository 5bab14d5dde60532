"""Detection of objects: boxes of images, detectors, their loss and their average precision."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.domains.detection.average_precision import *
  from t2x.domains.detection.coco_images import *
  from t2x.domains.detection.detectors import *
  from t2x.domains.detection.task import *
  from t2x.domains.detection.transforms import *
else:
  __getattr__, __dir__ = exports(__name__)
