"""Models built of layers: residual blocks, stacks of blocks, encoders and decoders, output heads, and
the text and image models that combine them."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.models.block import *
  from t2x.models.bodies import *
  from t2x.models.capsules import *
  from t2x.models.classifiers import *
  from t2x.models.distilled_vision import *
  from t2x.models.encoder_decoder import *
  from t2x.models.flexible_vision import *
  from t2x.models.funnel import *
  from t2x.models.generator import *
  from t2x.models.global_tokens import *
  from t2x.models.heads import *
  from t2x.models.interfaces import *
  from t2x.models.language_model import *
  from t2x.models.mixture_of_softmaxes import *
  from t2x.models.multi_token import *
  from t2x.models.orders import *
  from t2x.models.pooling import *
  from t2x.models.reversible import *
  from t2x.models.segments import *
  from t2x.models.spec import *
  from t2x.models.stack import *
  from t2x.models.stages import *
  from t2x.models.two_streams import *
  from t2x.models.vision import *
else:
  __getattr__, __dir__ = exports(__name__)
