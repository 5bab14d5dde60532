"""Contrastive learning of images, or other sources, and texts (CLIP, https://arxiv.org/abs/2103.00020; SigLIP,
https://arxiv.org/abs/2303.15343), and classification by descriptions of the classes."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Size, Text
from t2x.data import Tokenizer
from t2x.data.plans import padded
from t2x.data.sources.base import class_names
from t2x.domains.retrieval.contrastive import PairTask
from t2x.layers import Tokens
from t2x.models import Inputs
from t2x.models.ranks import ROUNDING, rank
from t2x.parallel.placed import module_of
from t2x.tasks.base import Task
from t2x.tasks.captions import Modality
from t2x.tasks.evaluators import Evaluation, TaskEvaluator
from t2x.tasks.prediction import Watched, predict

__all__ = ['CaptionContrast', 'ZeroShot']

_BATCH = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparePair:
  """Prepares a source and encodes its text with the special ids of a single text.

  Attributes:
    modality: prepares the source.
    tokenizer: encodes the text.
    fingerprint: that of the tokenizer, for the fingerprint of the rows.
    length: tokens of the text. Longer ones are cut.
    reads_padding: whether padding has the segment of the text.
    train: whether the source is augmented.
  """

  modality: Modality
  tokenizer: Tokenizer = dataclasses.field(repr=False)
  fingerprint: str
  length: int
  reads_padding: bool
  train: bool

  def __call__(self, row: Mapping[str, Any], rng: np.random.Generator | None) -> dict[str, Any]:
    """Returns the columns of the source as `a`, and `b` and `b_segments` int32 [length], and `weight` (1)."""
    columns = self.modality.prepare(row['source'], rng if self.train else None)
    sides = {f'a{name.removeprefix("source")}': array for name, array in columns.items()}
    return sides | self.text(row['target']) | {'weight': np.int32(1)}

  def text(self, text: str) -> dict[str, np.ndarray]:
    """Returns the columns of a text."""
    located = self.tokenizer.locate(text)[: self.length - self.tokenizer.num_added()]
    ids = self.tokenizer.join(located).ids
    row = np.full(self.length, self.tokenizer.pad_id, np.int32)
    row[: len(ids)] = ids
    segments = padded(np.ones(self.length if self.reads_padding else len(ids)), self.length)
    return {'b': row, 'b_segments': segments.astype(np.int32)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionContrast(PairTask):
  """Learns vectors of the `source` of an example, such as an image, and of its `target`, a text that describes it.

  Equal texts of several pairs in a batch are no negatives of each other. With `classes`, `t2x generate RUN --prompt
  FILE` returns the class whose descriptions have the vector closest to that of the source in FILE, and `ZeroShot`
  evaluates this. Texts have the special tokens of the tokenizer, the last one eos.

  Attributes:
    modality: prepares sources, and sets which kind of input the model reads.
    target_length: maximum number of tokens of a text, including special ones. Longer texts are cut before eos.
    reads_padding: whether the model reads the padding of texts as tokens, as SigLIP's does.
    classes: names of classes. Empty: those of the source, if it has some.
    templates: descriptions of a class, with `{}` for its name. The vector of a class is the mean of theirs.
  """

  modality: Modality
  target_length: Size
  reads_padding: bool = False
  classes: Sequence[Text] = ()
  templates: Sequence[Text] = ('{}',)

  text_fields: ClassVar[tuple[str, ...]] = ('target',)
  answers_prompts: ClassVar[bool] = True

  @property
  def inputs(self) -> Inputs:  # type: ignore[override]
    """The source, of the kind of the modality, and the text."""
    return {'a': self.modality.kind, 'b': 'ids'}

  def __post_init__(self):
    if not self.templates or not all(template.count('{}') == 1 for template in self.templates):
      raise UserError(
        f'CaptionContrast.templates = {tuple(self.templates)}: each must have one {{}}, for the name of the class'
      )

  @property
  def plan(self):
    """None: sources are prepared when they are read."""

  def transform(self, *, train):
    return PreparePair(
      modality=self.modality,
      tokenizer=self.fitted,
      fingerprint=self.fitted.fingerprint,
      length=self.target_length,
      reads_padding=self.reads_padding,
      train=train,
    )

  def spec(self, batch_size):
    """Returns the modality's columns as a, ...; b, b_segments: int32 [batch, target_length]; weight: int32 [batch]."""
    columns = self.modality.spec(batch_size)
    sides = {f'a{name.removeprefix("source")}': column for name, column in columns.items()}
    text = jax.ShapeDtypeStruct((batch_size, self.target_length), jnp.int32)
    weight = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    return sides | {'b': text, 'b_segments': text, 'weight': weight}

  def side(self, batch, name):
    if name == 'a':
      columns = {f'source{n[1:]}': array for n, array in batch.items() if n[0] == 'a'}
      return self.modality.tokens(columns)
    return Tokens.row(self.target_length, segments=batch['b_segments'], right_padded=True)

  def texts(self, batch):
    """Returns sums of the ids times random numbers of their positions, modulo 2^32."""
    random = np.random.default_rng(20261126)
    factors = jnp.asarray(random.integers(1 << 32, size=(2, self.target_length), dtype=np.uint32))
    ids = jnp.where(batch['b_segments'] != 0, batch['b'] + 1, 0).astype(jnp.uint32)
    return (ids[:, None] * factors).sum(axis=-1)

  def named_classes(self) -> Sequence[str]:
    """Returns the names of the classes.

    Raises:
      UserError: neither the task nor its source has classes.
    """
    names = tuple(self.classes) or tuple(class_names(self.source))
    if not names:
      raise UserError(
        'CaptionContrast.classes is empty: name the classes, such as --gin.CaptionContrast.classes=\'("cat", "dog")\''
      )
    return names

  def class_vectors(self, model: object, watched: Watched = iter) -> np.ndarray:
    """Returns a vector of unit length for each class, [classes, dim]."""
    transform = self.transform(train=False)
    empty = {n: np.zeros(s.shape[1:], s.dtype) for n, s in self.spec(1).items()}
    prompts = [t.replace('{}', name) for name in self.named_classes() for t in self.templates]
    rows = [empty | transform.text(prompt) for prompt in prompts]
    # Only the tower of the texts is compiled: nothing reads the other output.
    outputs = predict(
      model, rows, None, lambda m, batch: self.vectors(m, batch)[1].x, _BATCH, watched
    )
    vectors = np.stack([vector for _, vector in outputs])
    means = vectors.reshape(-1, len(self.templates), vectors.shape[-1]).mean(axis=1)
    return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)

  def class_logits(
    self, model: object, sources: Iterable[object], watched: Watched = iter
  ) -> np.ndarray:
    """Returns the products of the vectors of sources with those of the classes, times the factor plus the bias.

    Args:
      model: the model with its parameters.
      sources: sources, as in the examples.
      watched: wraps the iterable of batches.
    """
    classes, transform = self.class_vectors(model, watched), self.transform(train=False)
    rows = [transform({'source': source, 'target': ''}, None) for source in sources]
    outputs = predict(
      model, rows, None, lambda m, batch: self.vectors(m, batch)[0].x, _BATCH, watched
    )
    products = np.stack([vector for _, vector in outputs]) @ classes.T
    module = module_of(model)
    bias = 0.0 if module.bias is None else float(module.bias[...])
    return float(module.factor) * products + bias

  def check_prompt(self, prompt):
    """Raises UserError if there are no classes, or a prompt is no file of a source."""
    self.named_classes()
    self.modality.opened(prompt)

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Returns the `num_return` closest classes of each source; prompts are paths of files."""
    logits = self.class_logits(model, [self.modality.opened(prompt) for prompt in prompts])
    log_probs, names = np.asarray(self.loss.log_probs(jnp.asarray(logits))), self.named_classes()

    def answer(row: int, label: int) -> dict[str, Any]:
      score = float(log_probs[row, label])
      text = {'text': names[label], 'tokens': [int(label)]}
      return text | {'log_probs': [score], 'score': score}

    order = np.argsort(-log_probs, axis=1, kind='stable')[:, :num_return]
    return [[answer(row, label) for label in labels] for row, labels in enumerate(order)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZeroShot(TaskEvaluator):
  """Classifies sources by the descriptions of classes of `CaptionContrast`, without training on labels.

  Examples have a `label`, the number or the name of a class. Metrics: accuracy and, with more than five classes,
  top_5_accuracy. Classes with the same score, or NaN, rank before the class of the example.
  """

  kinds: ClassVar[tuple[type[Task], ...]] = (CaptionContrast,)

  def check(self, task, model):
    """Also raises UserError if there are no classes."""
    super().check(task, model)
    task.named_classes()

  def __call__(self, evaluated):
    """Returns the metrics, and whether each example has the right class."""
    task = evaluated.task
    names, examples = list(task.named_classes()), list(self._examples(task))
    labels = np.array([_number(example, names) for example in examples])
    model = evaluated.model()
    sources = (example['source'] for example in examples)
    logits = task.class_logits(model, sources, evaluated.watched)
    own = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    others = np.arange(len(names)) != labels[:, None]
    ranks = rank(own, logits, others, ROUNDING * float(module_of(model).factor))
    right = (ranks == 1).astype(float)
    metrics = {'examples': float(len(examples)), 'accuracy': float(right.mean())}
    if len(names) > 5:
      metrics['top_5_accuracy'] = float(np.mean(ranks <= 5))
    return Evaluation(metrics, examples={'accuracy': right})


def _number(example: Mapping[str, Any], names: Sequence[str]) -> int:
  label = example.get('label')
  if label in names:
    return names.index(label)
  if isinstance(label, int | np.integer) and 0 <= label < len(names):
    return int(label)
  raise UserError(
    f"ZeroShot needs examples with a 'label', the number or the name of one of {len(names)} classes, not {label!r}"
  )
