"""Videos: tubelets, frames, and the classification of videos."""

from t2x.domains.video.tubelets import *
from t2x.domains.video.video_classification import *
