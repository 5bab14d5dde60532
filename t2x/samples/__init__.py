"""Small real data sets that work offline, and evaluators that read only them."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.samples.asterisk import *
  from t2x.samples.babel_dates import *
  from t2x.samples.brown import *
  from t2x.samples.digit_rows import *
  from t2x.samples.digit_scenes import *
  from t2x.samples.digits import *
  from t2x.samples.drawn_scenes import *
  from t2x.samples.drawn_texts import *
  from t2x.samples.emoji import *
  from t2x.samples.factbook import *
  from t2x.samples.fashion_mnist import *
  from t2x.samples.frame_words import *
  from t2x.samples.libreoffice import *
  from t2x.samples.moving_digits import *
  from t2x.samples.scene_questions import *
  from t2x.samples.sentiment import *
  from t2x.samples.series import *
  from t2x.samples.spoken_sentences import *
  from t2x.samples.spoken_strings import *
  from t2x.samples.standard_library import *
else:
  __getattr__, __dir__ = exports(__name__)
