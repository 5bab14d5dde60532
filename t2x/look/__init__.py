"""What a trained model does with one input: attention, predictions of each layer, losses, embeddings, positions.

`look_at_text`, `look_at_pair` and `look_at_image` compute a `Look`; `t2x.look.page` and `t2x.look.pictures` draw it.
"""

from t2x.look.attention import Attention, Grid, HeadStatistics
from t2x.look.lens import Lens, TokenLosses
from t2x.look.look import MAX_PATCHES, MAX_TOKENS, Look, look_at_image, look_at_pair, look_at_text
from t2x.look.parameters import Neighbour, Neighbours, PositionVectors
from t2x.look.patterns import InteractionMatrix, interaction_matrix, matrices_of

__all__ = [
  'MAX_PATCHES',
  'MAX_TOKENS',
  'Attention',
  'Grid',
  'HeadStatistics',
  'InteractionMatrix',
  'Lens',
  'Look',
  'Neighbour',
  'Neighbours',
  'PositionVectors',
  'TokenLosses',
  'interaction_matrix',
  'look_at_image',
  'look_at_pair',
  'look_at_text',
  'matrices_of',
]
