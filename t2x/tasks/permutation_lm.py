"""Permutation language modelling (XLNet: Yang et al. 2019, https://arxiv.org/abs/1906.08237)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar

import jax

from t2x.base.errors import UserError
from t2x.base.ranges import Range, Size, TunableNonNegative
from t2x.data import (
  ConcatenateAndSplit,
  DocumentPlan,
  MaskTokens,
  OrderTokens,
  SingleTokens,
  TokenChoice,
)
from t2x.models import Output, TextModel
from t2x.tasks.distillation import TeacherLoss
from t2x.tasks.marks import MarkRule
from t2x.tasks.masked_lm import (
  MaskedLM,
  num_predictions,
  predicted,
  predicted_logits,
  predicted_spec,
)
from t2x.tasks.text import TextTask, chained, in_training

__all__ = ['PermutationLM']


@dataclasses.dataclass(frozen=True, kw_only=True)
class PermutationLM(TextTask):
  """Predicts the last tokens of a random order of a row, each from all tokens before it in the order (section 2.3).

  All remaining tokens, the context, see each other. The model reads `Tokens.order`, as `TwoStreams` does, and no token
  is masked. The published data chooses spans instead of single tokens.

  Attributes:
    length: tokens per row.
    packing: the packing of documents, called with the tokens per row, as in `MaskedLM`.
    marks: rules by the names of the marks that they set, as in `CausalLM`.
    rate: fraction of the tokens to predict, the 1 / K of the paper.
    choose: chooses the tokens: `SingleTokens`, `WholeWords` or `NGrams` of words.
    z_loss: coefficient of logsumexp(logits)^2, added to the loss of each token in training only.
    distillation: the teacher's term, `Distillation` or `HardDistillation`; None without a teacher.

  Raises:
    UserError: `pieces` is set and rows are one segment without padding.
  """

  length: Size
  packing: Callable[..., DocumentPlan] = ConcatenateAndSplit
  marks: Mapping[str, MarkRule] = dataclasses.field(default_factory=dict)
  rate: Annotated[float, Range('0 < x <= 1')] = 1 / 6
  choose: TokenChoice = SingleTokens()
  z_loss: TunableNonNegative = 0.0
  distillation: TeacherLoss | None = None

  learns_from_teacher: ClassVar[bool] = True
  data_fields: ClassVar[frozenset[str]] = TextTask.data_fields | {'rate', 'choose'}

  def transform(self, *, train):
    """Returns the transform that chooses tokens and draws an order; both are fixed in evaluation."""
    choose = MaskTokens(
      tokenizer=self.fitted,
      rate=self.rate,
      mask_rate=0.0,
      random_rate=0.0,
      choose=self.choose,
      max_predictions=num_predictions(self.rate, self.length),
    )
    return chained(self.resegment({'tokens': self.length}, train), choose, OrderTokens())

  def spec(self, batch_size):
    """Returns the shapes of the rows with their order, and of the positions, labels and weights of the predictions."""
    spec = predicted_spec(batch_size, self.length, num_predictions(self.rate, self.length))
    return spec | {'order': spec['tokens']}

  def check_model(self, model):
    """Also raises UserError if a layer of the model does not read the order, so that tokens would see themselves."""
    super().check_model(model)
    if not all('order' in pattern.reads for pattern in model.spec.patterns):
      raise UserError(
        'PermutationLM needs a model whose layers read the order of prediction: bind Encoder.stack = @TwoStreams'
      )

  def hidden(
    self, model: TextModel, batch: Mapping[str, jax.Array], key: jax.Array | None
  ) -> Output:
    """Returns the model's output with the hidden vectors of the rows."""
    tokens = dataclasses.replace(self.row_tokens(batch), order=batch['order'])
    return model.hidden(batch['tokens'], tokens=tokens, key=key)

  # The predicted tokens and their logits, as in `MaskedLM`.
  target_weights = MaskedLM.target_weights
  predictions = MaskedLM.predictions

  def sums(self, model, batch, key, teacher=None):
    """Returns loss and accuracy over the predicted tokens."""
    out = self.hidden(model, batch, key)
    x, labels, weights = predicted(out, batch), batch['labels'], self.weighted_targets(batch)
    z_loss = in_training(key, self.z_loss)
    sums = model.cross_entropy(x, labels, weights, z_loss=z_loss, axes=('batch', None))
    output = self.with_auxiliaries(sums, model, out, batch, key)
    return (
      output
      if teacher is None
      else self.distilled(output, predicted_logits(model, x), out.x, teacher, batch)
    )

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Raises UserError: the tokens of a row are predicted in random order."""
    raise UserError('a permutation language model does not continue texts: use a CausalLM')
