"""Base class of tasks over labelled texts, with one example per row and a classification head.

An example has one text or several, each of which the model reads in a row of its own (GPT-1, Radford et al. 2018,
Improving Language Understanding by Generative Pre-Training, section 3.3).
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.names import missing
from t2x.base.ranges import Size, Text
from t2x.data import LabelledPlan
from t2x.data.several_texts import joined_plans
from t2x.layers import named_key
from t2x.layers.keys import repeated_keys
from t2x.models import Output
from t2x.parallel.placed import runs_model
from t2x.tasks.base import example_weights
from t2x.tasks.former import BASES
from t2x.tasks.marks import MarkRule
from t2x.tasks.prediction import on_devices
from t2x.tasks.text import TextTask, encoded_spec, hidden_of

if not TYPE_CHECKING:  # Type checkers would accept every name.
  __getattr__ = missing(__name__, BASES)

Batch = Mapping[str, jax.Array]
# The values of settings that a task does not have.
NO_LABELS: Sequence[str] = ()
NO_FIELDS: Sequence[Text] = ()
NO_ORDERS: Sequence[Sequence[Text]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledTask(TextTask):
  """A task that predicts classes or a number from the hidden vectors of the texts of an example.

  The texts of an example, of `length` tokens each, are consecutive in the batch; `by_text` returns a row for each.

  Attributes:
    length: tokens per text, including special tokens.
    marks: rules by the names of the marks that they set, as in `CausalLM`.
  """

  length: Size
  marks: Mapping[str, MarkRule] = dataclasses.field(default_factory=dict)

  # Settings that a task may have: the names of its classes; the text fields of an example, and other orders of them,
  # which the model reads as further texts.
  labels = NO_LABELS
  fields = NO_FIELDS
  further_orders = NO_ORDERS

  answers_prompts: ClassVar[bool] = True
  has_perplexity: ClassVar[bool] = False
  # The numbers of an example with which the prediction is compared: column -> type.
  numbers: ClassVar[Mapping[str, Any]] = {}

  def __post_init__(self):
    orders = self.orders
    if len(set(orders)) < len(orders) or any(sorted(o) != sorted(self.fields) for o in orders):
      raise UserError(
        f'{type(self).__name__}.further_orders = {[list(order) for order in orders[1:]]}: each must be another order '
        f'of the fields {list(self.fields)}'
      )

  @property
  def class_names(self):
    return self.labels

  @property
  def num_classes(self) -> int:
    """Number of logits of the head: of the classes, or one score or number."""
    return len(self.labels) or 1

  @property
  def orders(self) -> list[tuple[str, ...]]:
    """The fields of each text of an example."""
    return [tuple(self.fields), *map(tuple, self.further_orders)]

  @property
  def num_texts(self) -> int:
    """Number of texts of an example."""
    return len(self.orders)

  @property
  def plans(self) -> Sequence[LabelledPlan]:
    """The plan of each text of an example."""
    raise NotImplementedError(f'{type(self).__name__} defines neither plans nor plan')

  @property
  def plan(self):
    """One example per row."""
    return joined_plans(self.plans)

  def texts_of(self, example):
    return {name: example[name] for name in self.fields or self.text_fields if name in example}

  def spec(self, batch_size):
    """Returns tokens, types, segments: int32 [batch, texts * length]; weight: int32 and the `numbers`: [batch]."""
    columns = encoded_spec(batch_size, self.num_texts * self.length)
    numbers = {'weight': jnp.int32, **self.numbers}
    return columns | {
      name: jax.ShapeDtypeStruct((batch_size,), dtype) for name, dtype in numbers.items()
    }

  def check_model(self, model):
    """Also raises UserError if `pieces` is set or the head has another number of classes."""
    super().check_model(model)
    if self.pieces is not None:
      raise UserError(
        f'{type(self).__name__}.pieces is not supported, because labels refer to the tokens of cached '
        'rows: leave it out'
      )
    if model.spec.num_classes != self.num_classes:
      raise UserError(
        f'the model has {model.spec.num_classes} classes, but {type(self).__name__} needs '
        f'{self.num_classes}: bind @{self.head} as the head, with num_classes = {self.num_classes}'
      )

  target_weights = example_weights

  def auxiliary_weights(self, batch):
    """Returns the weights of the auxiliary objectives, which count texts."""
    return super().auxiliary_weights(self.by_text(batch))

  def token_weights(self, batch):
    return super().token_weights(self.by_text(batch))

  def by_text(self, batch: Batch) -> Batch:
    """Returns the batch with a row for each text: [batch * texts, length]; other arrays are repeated."""
    if self.num_texts == 1:
      return batch
    return {
      name: array.reshape(-1, self.length)
      if name in ('tokens', 'types', 'segments')
      else jnp.repeat(array, self.num_texts, axis=0)
      for name, array in batch.items()
    }

  def keys_by_text(self, key: Array | None) -> Array | None:
    """Returns the keys of the texts from those of the examples: the texts of an example have different dropout."""
    return repeated_keys(key, self.num_texts)

  def hidden(self, model: Any, batch: Batch, key: Array | None) -> Output:
    """Returns the output of the model for the rows of `by_text`, with one auxiliary loss per example."""
    out = hidden_of(model, self.by_text(batch), self.keys_by_text(key), self.token_marks)
    means = {
      name: loss.reshape(-1, self.num_texts).mean(axis=1) for name, loss in out.aux.losses.items()
    }
    return dataclasses.replace(out, aux=dataclasses.replace(out.aux, losses=means))

  def class_logits(
    self, model: Any, batch: Batch, key: Array | None
  ) -> tuple[Float[Array, 'batch classes'], Output]:
    """Returns the class logits of the examples in float32, and the output of the model for the rows of `by_text`.

    The classifier reads the sum of the vectors of all orders, as in GPT-1 for the similarity of two texts.
    """
    out = self.hidden(model, batch, key)
    settings = {'texts': self.num_texts} if self.further_orders else {}
    logits = model.head.classify(
      out.x, self.by_text(batch)['segments'], named_key(key, 'head'), **settings
    )
    return logits.astype(jnp.float32), out

  def text_logits(
    self, model: Any, batch: Batch, key: Array | None
  ) -> tuple[Float[Array, 'batch texts'], Output]:
    """Returns one logit of each text in float32, and the output of the model for the rows of `by_text`."""
    out = self.hidden(model, batch, key)
    head = self.keys_by_text(named_key(key, 'head'))
    logits = model.head.classify(out.x, self.by_text(batch)['segments'], head)
    return logits.astype(jnp.float32).reshape(-1, self.num_texts), out

  def with_auxiliaries(self, metrics, model, out, batch, key):
    """Adds the auxiliary objectives of all texts."""
    return super().with_auxiliaries(
      metrics, model, out, self.by_text(batch), self.keys_by_text(key)
    )

  def run_on_examples(
    self,
    function: Callable[..., Any],
    model: object,
    examples: Sequence[Mapping[str, Any]],
  ) -> tuple[list[dict[str, Any]], Any]:
    """Returns the rows of some examples, and `function(model, batch)` for the batch of all these rows."""
    rows = list(self.plan.rows(examples, self.fitted, collections.Counter()))
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return rows, on_devices(jax.jit(runs_model(function)), model, batch)
