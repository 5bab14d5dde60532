"""Evaluators: additional metrics of a run, on other data or on generated text.

`Experiment.evaluations` holds evaluators by name; their metrics are NAME/METRIC.
"""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from t2x.base.errors import UserError
from t2x.base.packages import require
from t2x.base.ranges import Count, Natural, Size, Text
from t2x.data.sources.subset import Spread, spread
from t2x.decode import Strategy
from t2x.tasks.base import Task
from t2x.tasks.captions import Captions
from t2x.tasks.causal_lm import CausalLM
from t2x.tasks.prediction import Watched, in_batches, predict
from t2x.tasks.prefix_lm import PrefixLM
from t2x.tasks.span_prediction import SpanPrediction
from t2x.tasks.squad import exact_match, word_f1
from t2x.tasks.translation import TargetText, Translation

__all__ = ['Answers', 'Evaluator', 'Losses', 'Samples', 'Translations']

# Number of generated texts stored per evaluation.
NUM_SAMPLES = 10


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The result of an evaluator.

  Attributes:
    metrics: numbers by name, and texts that describe how they were computed.
    samples: generated texts, as dicts of texts.
    images: pictures by name, uint8 [height, width, 3], which TensorBoard shows.
    examples: values of each example by metric, [examples]; only of metrics that are their means.
  """

  metrics: Mapping[str, float | str]
  samples: Sequence[Mapping[str, str]] = ()
  images: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  examples: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
  """The argument of an evaluator: a trained model with its task.

  Attributes:
    task: the evaluator's task, bound to the run's tokenizer.
    watched: wraps the iterables of slow loops, so that a stalled device is detected.
    model: returns the model with its parameters.
    rows: returns the preprocessed rows of a split of the task.
    evaluation: computes the task's metrics over a number of rows sampled evenly from a split; None: all rows.
    batch_size: rows per batch of an evaluation of the run.
  """

  task: Task
  watched: Watched
  model: Callable[[], Any]
  rows: Callable[[str], Any]
  evaluation: Callable[[str, int | None], Evaluation]
  batch_size: int

  def predict(
    self,
    rows: Sequence[Mapping[str, Any]],
    function: Callable[[Any, Mapping[str, Any]], Any],
    batch_size: int | None = None,
  ) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """Yields each row with its output of the model; pads batches, and splits them over the devices.

    Args:
      rows: `rows(split)`, or some of them.
      function: `(model, batch) -> outputs` with arrays [batch, ...]; the batch has the arrays of `task.spec`.
      batch_size: rows per batch; None: those of the run.
    """
    size, transform = batch_size or self.batch_size, self.task.transform(train=False)
    yield from predict(self.model(), rows, transform, function, size, self.watched)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(abc.ABC):
  """Evaluates a model during and after training.

  Attributes:
    task: the task to evaluate; None: the experiment's task.
    split: split of the task's source; None: the task's `eval_split`.
    every: runs in each n-th evaluation of the run and in the last one; 0: only in the last one.
    num_examples: number of examples, sampled evenly from the split; None: all.
  """

  task: Task | None = None
  split: Text | None = None
  every: Natural = 1
  num_examples: Count | None = None

  # Whether the metrics are means over tokens, which are not comparable between tokenizers.
  by_tokens: ClassVar[bool] = False

  @property
  def fixed(self) -> frozenset[str]:
    """Settings that `replaced` does not change, because the evaluator does not read them or sets them itself."""
    return frozenset()

  def replaced(self, **settings: Any) -> 'Evaluator':
    """Returns a copy with other settings, except those in `fixed`."""
    changed = {name: value for name, value in settings.items() if name not in self.fixed}
    return dataclasses.replace(self, **changed)

  def check(self, task: Task, model: Any) -> None:  # noqa: B027
    """Raises UserError if the evaluator does not support the task or the model.

    Args:
      task: the task, bound to the tokenizer.
      model: the model's shapes.
    """

  @abc.abstractmethod
  def __call__(self, evaluated: Evaluated) -> Evaluation:
    """Evaluates the model."""

  def _split(self, task: Task) -> str:
    return self.split or task.eval_split

  def _examples(self, task: Task) -> Sequence[Mapping[str, Any]]:
    """Returns `num_examples` examples of the split."""
    examples = task.source.load(self._split(task))
    if self.num_examples is None or self.num_examples >= len(examples):
      return examples
    return Spread(examples, self.num_examples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Losses(Evaluator):
  """Computes the metrics of a task without generation, e.g. on other data or with longer rows."""

  by_tokens: ClassVar[bool] = True

  def __call__(self, evaluated: Evaluated) -> Evaluation:
    return evaluated.evaluation(self._split(evaluated.task), self.num_examples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskEvaluator(Evaluator):
  """Evaluates tasks of some classes."""

  kinds: ClassVar[tuple[type[Task], ...]]
  packages: ClassVar[tuple[str, ...]] = ()

  def check(self, task: Task, model: Any) -> None:
    """Raises UserError if the task is of another class, or a package is not installed."""
    if not isinstance(task, self.kinds):
      kinds = ' and '.join(f'@{kind.__name__}' for kind in self.kinds)
      raise UserError(f'{type(self).__name__} evaluates {kinds}, not @{type(task).__name__}')
    require({package: [type(self).__name__] for package in self.packages})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples(TaskEvaluator):
  """Generates continuations of prompts, for human inspection; computes no metrics.

  Attributes:
    prompts: the prompts.
    num_tokens: maximum number of tokens of a continuation.
    strategy: decoding strategy; None: the task's.
  """

  prompts: Sequence[Text]
  num_tokens: Size = 64
  strategy: Strategy | None = None

  fixed = frozenset({'split', 'num_examples'})
  kinds: ClassVar[tuple[type[Task], ...]] = (CausalLM,)

  def __post_init__(self):
    if self.split is not None or self.num_examples is not None:
      raise UserError('Samples reads only its prompts: leave out Samples.split and num_examples')

  def check(self, task, model):
    """Also raises UserError if the model cannot continue the prompts."""
    super().check(task, model)
    assert isinstance(task, CausalLM)
    task.check_generate(model, self.prompts, self.strategy or task.strategy, self.num_tokens)

  def __call__(self, evaluated):
    """Returns the continuations; the random seed is the same in every evaluation."""
    task, samples = evaluated.task, []
    assert isinstance(task, CausalLM)
    strategy = self.strategy or task.strategy
    for prompts in evaluated.watched([self.prompts]):
      answers = task.generate(
        evaluated.model(), prompts, strategy=strategy, max_new_tokens=self.num_tokens
      )
      samples += [
        {'prompt': prompt, 'output': answer[0]['text']}
        for prompt, answer in zip(prompts, answers, strict=True)
      ]
    return Evaluation({}, samples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratedTargets(TaskEvaluator):
  """Scores generated targets of the examples of a split, without too long examples, which the rows drop.

  Attributes:
    strategy: decoding strategy; None: the task's.
    batch_size: sources per batch.
  """

  strategy: Strategy | None = None
  batch_size: Size = 64

  def check(self, task, model):
    """Also raises UserError if the model cannot generate for the longest source."""
    super().check(task, model)
    assert isinstance(task, TargetText)
    task.check_generate(model, self.strategy or task.strategy, self.batch_size)

  def __call__(self, evaluated):
    """Generates the targets of the examples and returns the metrics."""
    task = evaluated.task
    assert isinstance(task, TargetText)
    split, model = self._examples(task), evaluated.model()
    examples = [example for example in (split[i] for i in range(len(split))) if task.fits(example)]
    if not examples:
      raise UserError(f'{type(self).__name__}: all of the {len(split)} examples are too long')

    def generated(pairs):
      return task.generate(
        model,
        [task.prompt_of(pair) for pair in pairs],
        strategy=self.strategy or task.strategy,
        max_new_tokens=task.answer_length,
      )

    results = in_batches(
      examples,
      generated,
      self.batch_size,
      size=lambda pair: len(pair['source']),
      watched=evaluated.watched,
    )
    pairs, answers = zip(*results, strict=True)
    result = self._score(pairs, [text_of(answer[0]) for answer in answers])
    if len(examples) == len(split):
      return result
    dropped = float(len(split) - len(examples))
    return dataclasses.replace(result, metrics={**result.metrics, 'dropped': dropped})

  @abc.abstractmethod
  def _score(self, pairs: Sequence[Mapping[str, Any]], outputs: Sequence[str]) -> Evaluation:
    """Returns the metrics of the generated targets of examples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translations(GeneratedTargets):
  """Computes BLEU and chrF of translations with sacrebleu, and the fraction of exact matches.

  Attributes:
    language: code of the target language, which selects sacrebleu's tokenizer (`zh`, `ja` and `ko` have
      their own); '': the default, 13a.
    strategy: decoding strategy; None: the task's.
    batch_size: sentences per batch.
  """

  language: str = ''

  kinds: ClassVar[tuple[type[Task], ...]] = (Translation, PrefixLM, Captions)

  def check(self, task, model):
    """Also raises UserError if the language is unknown or the model cannot translate the longest source."""
    self._bleu()
    super().check(task, model)

  def _bleu(self) -> Any:
    import sacrebleu

    try:
      return sacrebleu.BLEU(trg_lang=self.language)
    except (ImportError, RuntimeError, ValueError) as error:
      raise UserError(f"Translations.language = '{self.language}': {error}") from error

  def _references(self, pair: Mapping[str, Any]) -> Sequence[str]:
    """Returns the translations of an example that are right."""
    return [pair['target']]

  def _score(self, pairs, outputs):
    import sacrebleu

    bleu, chrf = self._bleu(), sacrebleu.CHRF()
    references = [self._references(pair) for pair in pairs]
    exact = np.array([o in own for o, own in zip(outputs, references, strict=True)], float)
    # sacrebleu reads the first reference of all, then the second, ...
    streams = list(itertools.zip_longest(*references))
    metrics: dict[str, float | str] = {
      'examples': float(len(pairs)),
      'bleu': bleu.corpus_score(outputs, streams).score,
      'bleu_signature': str(bleu.get_signature()),
      'chrf': chrf.corpus_score(outputs, streams).score,
      'chrf_signature': str(chrf.get_signature()),
      'exact_match': float(np.mean(exact)),
    }
    samples = [
      {**_texts(pair), 'output': output}
      for pair, output in list(zip(pairs, outputs, strict=True))[:NUM_SAMPLES]
    ]
    return Evaluation(metrics, samples, examples={'exact_match': exact})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers(TaskEvaluator):
  """Computes exact match and F1 of answers to questions as SQuAD's script does, as fractions.

  Questions of which several spans, or NaN, have the best score are wrong.
  """

  kinds: ClassVar[tuple[type[Task], ...]] = (SpanPrediction,)

  def __call__(self, evaluated):
    """Answers the questions of the split and returns the metrics."""
    task = evaluated.task
    assert isinstance(task, SpanPrediction)
    split = self._split(task)
    examples = task.source.load(split)
    count = min(len(examples), self.num_examples or len(examples))
    indices = spread(count, len(examples))
    answers = task.answers(evaluated.predict, evaluated.rows(split), examples, indices)
    pairs = [(answers[i], list(examples[i]['answers'])) for i in indices]
    scores = {
      # None is no answer, not the empty one.
      name: np.array([0 if a is None else score(a, gold) for a, gold in pairs], float)
      for name, score in (('exact_match', exact_match), ('f1', word_f1))
    }
    metrics = {'examples': float(len(pairs))}
    metrics |= {name: float(np.mean(values)) for name, values in scores.items()}
    samples = [
      {'question': examples[i]['question'], 'answers': ' | '.join(gold), 'output': answer or ''}
      for i, (answer, gold) in zip(indices[:NUM_SAMPLES], pairs, strict=False)
    ]
    return Evaluation(metrics, samples, examples=scores)


def text_of(answer: Mapping[str, Any]) -> str:
  """Returns the generated text of an answer; '' if its score is NaN."""
  return '' if np.isnan(answer['score']) else answer['text']


def _texts(pair: Mapping[str, Any]) -> dict[str, str]:
  """Returns source and target of an example; sources that are no text are left out."""
  return {name: pair[name] for name in ('source', 'target') if isinstance(pair[name], str)}
