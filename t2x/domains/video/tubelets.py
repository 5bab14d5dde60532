"""Embedding of the tubelets of videos."""

from flax import nnx

from t2x.base.ranges import Size
from t2x.layers.embeddings.patches import GridEmbedding
from t2x.layers.initializers import lecun_normal
from t2x.layers.parameters import Initializer

__all__ = ['Tubelets']


class Tubelets(GridEmbedding):
  """Embeds videos as one token per tubelet of several frames (ViViT, https://arxiv.org/abs/2103.15691, section 3.2), or
  per patch of one frame (TimeSformer, https://arxiv.org/abs/2102.05095), after a class token.

  Args:
    frames: number of frames of a tubelet.
    patch_size: height and width of a tubelet in pixels.
    channels: number of channels of the videos.
    class_token: whether to prepend a learned token to the tubelets of all frames.
    init: initialiser of the projection. Its kernel is [frames, patch, patch, channels, d_model], as that of a
      convolution whose strides are the sides of a tubelet.
  """

  kind = 'video'
  settings = 'frames or patch_size'

  def __init__(
    self,
    d_model: int,
    *,
    frames: Size,
    patch_size: Size,
    channels: Size = 3,
    class_token: bool = True,
    use_bias: bool = True,
    init: Initializer = lecun_normal(),
    rngs: nnx.Rngs,
  ):
    super().__init__(
      d_model,
      (frames, patch_size, patch_size),
      ('frames', 'patch', 'patch'),
      channels=channels,
      class_token=class_token,
      num_registers=0,
      use_bias=use_bias,
      init=init,
      rngs=rngs,
    )
