"""Images as rows of pixels: language models of pixels, images of texts, and completed images."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.domains.pixels.hidden_pixels import *
  from t2x.domains.pixels.sampled_images import *
  from t2x.domains.pixels.tasks import *
  from t2x.domains.pixels.text_to_image import *
else:
  __getattr__, __dir__ = exports(__name__)
