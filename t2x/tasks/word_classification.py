"""Classification of the words of sentences: parts of speech, names (BERT,
https://arxiv.org/abs/1810.04805, section 5.3)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t2x.data import LabelledWords
from t2x.errors import UserError
from t2x.models import Output, OutputKind, TextModel
from t2x.models.language_model import select
from t2x.models.losses import classification_sums
from t2x.ranges import NonEmpty
from t2x.tasks.base import TaskOutput
from t2x.tasks.entities import Tags, entities, num_equal
from t2x.tasks.labelled import LabelledTask
from t2x.tasks.text import encoded_spec, hidden_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordClassification(LabelledTask):
  """The first piece of each word tells its class: examples have lists `words` and `labels`.

  Metrics: accuracy over words; where the labels are BIO tags also entity_precision, entity_recall
  and entity_f1 over whole entities, as seqeval and conlleval count them. (A sentence longer than a
  row is cut between words: each word counts once, an entity across the cut as two.)

  Attributes:
    labels: the classes' names, BIO tags or not.
  """

  labels: Annotated[Sequence[str], NonEmpty]

  outputs: ClassVar[OutputKind] = 'classes per token'
  head: ClassVar[str] = 'TokenClassifier'
  best_metric: ClassVar[str] = 'accuracy'
  best_mode: ClassVar[Literal['min', 'max']] = 'max'

  def texts_of(self, example):
    """The sentence."""
    return [' '.join(map(str, example['words']))] if 'words' in example else []

  @property
  def num_classes(self):
    """One for each label."""
    return len(self.labels)

  @property
  def plan(self):
    """One sentence a row."""
    return LabelledWords(length=self.length, labels=tuple(self.labels))

  def spec(self, batch_size):
    """tokens, types, segments, word_positions, word_labels, word_weights: int32 [batch, length]."""
    words = ('word_positions', 'word_labels', 'word_weights')
    return encoded_spec(batch_size, self.length, *words)

  def check_model(self, model):
    """Also that the labels are BIO tags all or none."""
    super().check_model(model)
    Tags.of(self.labels)

  def target_weights(self, batch):
    """1 for each word."""
    return (batch['word_weights'] != 0).astype(jnp.float32)

  def sums(self, model, batch, key):
    """Loss and accuracy over words, and how many entities there are, are told and are right."""
    logits, out = _logits(model, batch, key)
    labels, present = batch['word_labels'], batch['word_weights'] != 0
    sums = classification_sums(logits, labels, self.target_weights(batch))
    tags = Tags.of(self.labels)
    if tags is None:
      return TaskOutput(sums, out.aux)
    told = entities(tags, jnp.argmax(logits, axis=-1), present)
    true = entities(tags, labels, present)
    right, num_told, num_true = (
      n.astype(jnp.float32) for n in (num_equal(told, true), told.begins.sum(), true.begins.sum())
    )
    sums |= {
      'entity_precision': (right, num_told),
      'entity_recall': (right, num_true),
      'entity_f1': (2 * right, num_told + num_true),
    }
    return TaskOutput(sums, out.aux)

  def check_prompt(self, prompt):
    """It needs a word."""
    if not prompt.split():
      raise UserError('a prompt without a word: there is nothing to classify')

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """The words of each prompt, as white space parts them, each with its label: `word/label`."""
    for prompt in prompts:
      self.check_prompt(prompt)
    words = [prompt.split() for prompt in prompts]
    examples = [{'words': one, 'labels': [self.labels[0]] * len(one)} for one in words]
    rows, logits = self.told(lambda m, batch: _logits(m, batch, None)[0], model, examples)
    # Every word is in one of the rows, and all are in order.
    by_word = np.asarray(jax.nn.log_softmax(logits))[
      np.stack([r['word_weights'] for r in rows]) != 0
    ]
    answers = []
    for one in words:
      mine, by_word = by_word[: len(one)], by_word[len(one) :]
      tokens, log_probs = mine.argmax(axis=1).tolist(), mine.max(axis=1).tolist()
      text = ' '.join(f'{w}/{self.labels[i]}' for w, i in zip(one, tokens, strict=True))
      known = {'text': text, 'tokens': tokens, 'log_probs': log_probs}
      answers.append([known | {'score': sum(log_probs)}])
    return answers


def _logits(
  model: TextModel, batch: Mapping[str, jax.Array], key: jax.Array | None
) -> tuple[Float[Array, 'batch words classes'], Output]:
  """Class logits of each word in float32, and the hidden vectors that they are made of."""
  out = hidden_of(model, batch, key)
  return model.logits(select(out.x, batch['word_positions'])).astype(jnp.float32), out
