"""Base classes of tasks whose examples have several texts, each of which the model reads in a row of its own (GPT-1,
Radford et al. 2018, Improving Language Understanding by Generative Pre-Training, section 3.3)."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Text
from t2x.data import LabelledPlan
from t2x.data.plans import Plan
from t2x.data.several_texts import joined_plans
from t2x.layers import named_key
from t2x.layers.keys import repeated_keys
from t2x.models import Output
from t2x.tasks.labelled import LabelledTask
from t2x.tasks.text import encoded_spec, hidden_of

Batch = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextsTask(LabelledTask):
  """A task over examples of one or several texts of `length` tokens, which are consecutive in the batch."""

  @property
  @abc.abstractmethod
  def plans(self) -> Sequence[LabelledPlan]:
    """The plan of each text of an example."""

  @property
  def num_texts(self) -> int:
    """Number of texts of an example."""
    return len(self.plans)

  @property
  def plan(self) -> Plan:
    """One example per row."""
    return joined_plans(self.plans)

  def spec(self, batch_size):
    """Returns tokens, types, segments: int32 [batch, texts * length]; weight: int32 [batch]."""
    columns = encoded_spec(batch_size, self.num_texts * self.length)
    return columns | {'weight': jax.ShapeDtypeStruct((batch_size,), jnp.int32)}

  def target_weights(self, batch):
    return batch['weight'].astype(jnp.float32)

  def by_text(self, batch: Batch) -> Batch:
    """Returns the batch with a row for each text: [batch * texts, length]; numbers of an example are repeated."""
    return {
      name: array.reshape(-1, self.length)
      if name in ('tokens', 'types', 'segments')
      else jnp.repeat(array, self.num_texts, axis=0)
      for name, array in batch.items()
    }

  def token_weights(self, batch):
    return super().token_weights(self.by_text(batch))

  def _keys(self, key: Array | None) -> Array | None:
    """Returns the keys of the texts from those of the examples: the texts of an example have different dropout."""
    return repeated_keys(key, self.num_texts)

  def hidden(self, model: Any, batch: Batch, key: Array | None) -> Output:
    """Returns the output of the model for the rows of `by_text`, with one auxiliary loss per example."""
    out = hidden_of(model, self.by_text(batch), self._keys(key), self.token_marks)
    means = {
      name: loss.reshape(-1, self.num_texts).mean(axis=1) for name, loss in out.aux.losses.items()
    }
    return dataclasses.replace(out, aux=dataclasses.replace(out.aux, losses=means))

  def weights(self, batch):
    """Returns the weights of the loss terms; auxiliary objectives count texts."""
    return super().weights(self.by_text(batch)) | {'loss': self.weighted_targets(batch).sum()}

  def with_auxiliaries(self, metrics, model, out, batch, key):
    """Adds the auxiliary objectives of all texts."""
    return super().with_auxiliaries(metrics, model, out, self.by_text(batch), self._keys(key))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldsTask(TextsTask):
  """A task over texts or pairs of texts, each in one row or, for similarity, in both orders.

  Attributes:
    fields: one or two names of text fields.
    further_orders: other orders of the fields; the model reads each order, and the classifier the sum of their vectors,
      as GPT-1 for the similarity of two texts.
  """

  fields: Annotated[Sequence[Text], NonEmpty] = ('text',)
  further_orders: Sequence[Sequence[Text]] = ()

  def __post_init__(self):
    orders = self.orders
    if len(set(orders)) < len(orders) or any(sorted(o) != sorted(self.fields) for o in orders):
      raise UserError(
        f'{type(self).__name__}.further_orders = {[list(order) for order in orders[1:]]}: each '
        f'must be another order of the fields {list(self.fields)}'
      )

  @property
  def orders(self) -> list[tuple[str, ...]]:
    """The fields of each text of an example."""
    return [tuple(self.fields), *map(tuple, self.further_orders)]

  @property
  def num_texts(self):
    return 1 + len(self.further_orders)

  def texts_of(self, example):
    return {name: example[name] for name in self.fields if name in example}

  def classified(
    self, model: Any, batch: Batch, key: Array | None
  ) -> tuple[Float[Array, 'batch classes'], Output]:
    """Returns the class logits of the examples in float32, and the output of the model for the rows of `by_text`."""
    out = self.hidden(model, batch, key)
    segments, settings = self.by_text(batch)['segments'], {}
    if self.further_orders:
      settings['texts'] = self.num_texts
    logits = model.head.classify(out.x, segments, named_key(key, 'head'), **settings)
    return logits.astype(jnp.float32), out
