"""Videos: tubelets, frames, and the classification of videos."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.domains.video.tubelets import *
  from t2x.domains.video.video_classification import *
else:
  __getattr__, __dir__ = exports(__name__)
