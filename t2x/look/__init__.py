"""Shows a trained model on one input: attention, predictions of each layer, losses, embeddings, positions,
load of experts.

`look_at_text`, `look_at_pair` and `look_at_image` compute a `Look`;
`t2x.look.page` and `t2x.look.pictures` draw it.
"""

from t2x.look.attention import *
from t2x.look.lens import *
from t2x.look.loads import *
from t2x.look.look import *
from t2x.look.parameters import *
from t2x.look.patterns import *
