"""Maximal update parametrization (muP, https://arxiv.org/abs/2203.03466): settings of a small width suit larger."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from flax import nnx

from t2x.base.errors import UserError
from t2x.base.text_table import text_table
from t2x.layers.building import Scale, building
from t2x.layers.keys import Drawn, drawn
from t2x.models import Model

__all__ = ['MuP']

# Axes whose sizes are the width of a model. Axes without a name may be, too.
_WIDTHS = frozenset(
  {'embed', 'factor', 'features', 'heads', 'kv_heads', 'merged', 'mixed_heads', 'mlp', None}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MuP:
  """Scales initial values, steps and tied logits with the width of a model, relative to a base of another width.

  A model with the width of its base trains as without muP. For another width, a parameter with m times the
  inputs of the base is scaled as follows (https://arxiv.org/abs/2203.03466, table 3), for optimizers whose
  steps have the same size in all elements:

  | parameter | standard deviation of initial values | step |
  |---|---|---|
  | matrix, more inputs and outputs | m^(-1/2) | 1 / m |
  | matrix, more inputs (logits) | 1 / m | 1 / m |
  | all others (embeddings, biases, norms) | 1 | 1 |

  Initial values are those of the model's initialisers, rescaled to this standard deviation. Logits of heads that share
  the table of the embedding are divided by the ratio of the widths. Decoupled weight decay is not scaled: the product
  of learning rate and decay is the same for all widths.

  Attributes:
    base: constructor of the base, the same model with another width. Scores are divided by sqrt(head_dim), which
      must therefore be equal: models differ in the number of heads.
  """

  base: Callable[..., Model]

  def scaling(self, model: Callable[..., Model], vocab_size: int | None = None) -> 'Scaling':
    """Returns the factors for a model.

    Args:
      model: its constructor.
      vocab_size: vocabulary size of the task.

    Raises:
      UserError: model and base differ in more than their width, or an initialiser has no method `std`.
    """
    with building(vocab_size=vocab_size):
      own, base = drawn(model), drawn(self.base)
    if set(own) != set(base):
      name = min(set(own) ^ set(base))
      raise UserError(
        f'MuP.base: only {"the model" if name in own else "the base"} has the parameter {name}: model and base '
        'may differ only in width'
      )
    ratios = {ratio for name in own for ratio in _width_ratios(own[name], base[name])}
    if len(ratios) > 1:
      raise UserError(
        f'MuP.base: d_model is {" and ".join(f"{r:g}" for r in sorted(ratios))} times that of the base in different '
        'parts of the model: use one ratio'
      )
    inits, steps, kinds = dict[str, float](), dict[str, float](), dict[str, str]()
    for name, parameter in own.items():
      kinds[name], std, steps[name] = _rule(name, parameter, base[name])
      inits[name] = _init_factor(name, parameter, base[name], std)
    return Scaling(max(ratios, default=1.0), inits, steps, kinds)


@dataclasses.dataclass(frozen=True)
class Scaling:
  """Factors of a model relative to its base.

  Attributes:
    width_ratio: d_model of the model divided by that of the base.
    inits: factor of the initial values of each parameter.
    steps: factor of the steps of each parameter, without weight decay.
    kinds: 'hidden', 'output' or 'other' for each parameter.
  """

  width_ratio: float
  inits: Mapping[str, float]
  steps: Mapping[str, float]
  kinds: Mapping[str, str]

  def table(self) -> str:
    """Returns a table of the factors, with a line for all parameters that have the same ones."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, kind in self.kinds.items():
      row = kind, f'x {self.inits[name]:.4g}', f'x {self.steps[name]:.4g}'
      groups.setdefault(row, []).append(name)
    rows = [('muP', 'initial values', 'steps', 'parameters')]
    for row, names in groups.items():
      shown = ', '.join(names[:2]) + (f' and {len(names) - 2} more' if len(names) > 2 else '')
      rows.append((*row, shown))
    return text_table(rows, '<<<<')


@dataclasses.dataclass(frozen=True)
class Scaled:
  """Constructor of a model with the factors of muP.

  Attributes:
    model: constructor of the model.
    scaling: its factors.
  """

  model: Callable[..., Model]
  scaling: Scaling

  def __call__(self, *, rngs: nnx.Rngs) -> Model:
    with building(scale=Scale(self.scaling.width_ratio, self.scaling.inits)):
      return self.model(rngs=rngs)


def _width_ratios(own: Drawn, base: Drawn) -> set[float]:
  """Returns the ratio of d_model in a parameter; empty for a parameter without it."""
  sizes = zip(own.axes, own.shape, base.shape, strict=False)
  return {size / narrow for axis, size, narrow in sizes if axis == 'embed'}


def _rule(name: str, own: Drawn, base: Drawn) -> tuple[str, float, float]:
  """Returns the kind of a parameter, the ratio of standard deviations, and the factor of steps.

  Raises:
    UserError: parameter and base differ in another way than in width.
  """
  if own.copies != base.copies:
    raise UserError(
      f'MuP.base: {name} has {own.copies} copies, such as layers, in the model and {base.copies} in the base: model '
      'and base may differ only in width'
    )
  if len(own.shape) != len(base.shape):
    raise UserError(
      f'MuP.base: {name} is {list(own.shape)} in the model, but {list(base.shape)} in the base'
    )
  changed = [
    i for i, sizes in enumerate(zip(own.shape, base.shape, strict=True)) if len({*sizes}) > 1
  ]
  for i in changed:
    if own.axes[i] not in _WIDTHS:
      advice = ': keep head_dim and set num_heads' if own.axes[i] == 'head_dim' else ''
      raise UserError(
        f'MuP.base: {name} is {list(own.shape)} in the model, but {list(base.shape)} in the base: the axis '
        f"'{own.axes[i]}' is no width{advice}"
      )
  if own.matrix is None or base.matrix is None:
    if len(changed) > 1:
      raise UserError(
        f'muP has no rule for {name}, which is no matrix but has {len(changed)} widths'
      )
    return 'other', 1.0, 1.0
  inputs, outputs = (size / narrow for size, narrow in zip(own.matrix, base.matrix, strict=True))
  if inputs == 1:
    return 'other', 1.0, 1.0
  return (
    ('output', 1 / inputs, 1 / inputs) if outputs == 1 else ('hidden', inputs**-0.5, 1 / inputs)
  )


def _init_factor(name: str, own: Drawn, base: Drawn, ratio: float) -> float:
  """Returns the factor with which the standard deviation is `ratio` times that of the base."""
  if math.isnan(own.std) or math.isnan(base.std):
    if ratio == 1:
      return 1.0  # A constant, or an initialiser of the user for a vector.
    raise UserError(
      f'muP needs the standard deviation of the initialiser of {name}: give it a method `std`'
    )
  if own.std == 0:
    return 1.0
  return ratio * base.std / own.std


def check_same(run: Path, mup: MuP | None) -> None:
  """Raises UserError if parameters of a run have another meaning, because only one of two models has `MuP`."""
  config = run / 'config.gin'
  text = config.read_text() if config.exists() else ''
  other = re.search(r'^\s*(Experiment\.)?mup = @', text, re.MULTILINE) is not None
  if other != (mup is not None):
    raise UserError(
      f'{run} was trained {"with" if other else "without"} Experiment.mup, this model is built '
      f'{"without" if other else "with"} it, so that its logits would be scaled in another way'
    )
